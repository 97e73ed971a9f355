"""One GGUF file: its vocabulary and sizes, read without the weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.digest import file_digest
from treeopt.runtime.models.gguf.handle import Handle
from treeopt.runtime.models.gguf.library import library
from treeopt.runtime.models.model import TRAINED_LENGTH

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer

SUFFIX = ".gguf"
MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What decoding must know of a model."""

    vocabulary: int
    """Logits of a token."""
    max_positions: int
    """Longest text: what the model was trained for, or its sliding window."""
    limited_by: str
    """Which of the two it is."""
    end_tokens: tuple[int, ...]
    """Tokens that end a text."""
    number_format: str
    """Of the weights, such as `q8_0`."""


class GGUFFile:
    """What a file holds; each part raises TreeoptError where it is missing, FormatError where it is no such model."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @cached_property
    def vocabulary(self) -> Handle:
        """The file without its weights."""
        try:
            with self.path.open("rb") as file:
                begins = file.read(len(MAGIC))
        except OSError as error:
            raise TreeoptError(f"{self.path}: cannot be read ({error.strerror}). Expected a GGUF file.") from None
        if begins != MAGIC:
            raise FormatError(self.path, "content", "expected a GGUF file. Is the download complete?")
        return Handle(self.path, only_vocabulary=True)

    @cached_property
    def sizes(self) -> Sizes:
        """Its sizes, before any weight is loaded."""
        found, own = self.vocabulary, library()
        tokens = range(found.vocabulary_size)
        longest, limited_by = self._longest()
        return Sizes(
            vocabulary=found.vocabulary_size,
            max_positions=longest,
            limited_by=limited_by,
            end_tokens=tuple(token for token in tokens if own.llama_vocab_is_eog(found.vocabulary, token)),
            number_format=found.format_name,
        )

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the file's own vocabulary."""
        from treeopt.runtime.models.gguf.tokenizer import GGUFTokenizer  # models run without it

        return GGUFTokenizer(self.vocabulary)

    @cached_property
    def digest(self) -> str:
        """What the model is known by, see `treeopt.runtime.models.digest`."""
        return file_digest(self.path)

    def _longest(self) -> tuple[int, str]:
        """Return the longest text and what limits it: the trained length, or the window within which nothing is hidden."""
        limits = {TRAINED_LENGTH: "context_length", "sliding window": "attention.sliding_window"}
        lengths = [(length, name) for name, key in limits.items() if (length := self._length(key)) is not None]
        if not lengths:
            kind = self.vocabulary.value("general.architecture")
            raise FormatError(self.path, f"{kind}.context_length", "expected the longest text. Got none.")
        return min(lengths, key=lambda limit: limit[0])

    def _length(self, key: str) -> int | None:
        """Return a length of the architecture; None where the file has none above 0."""
        text = self.vocabulary.value(f"{self.vocabulary.value('general.architecture')}.{key}")
        return int(text) or None if text is not None and text.isdecimal() else None


def is_gguf(path: Path | str) -> bool:
    """Whether a name stands for a GGUF file.

    >>> is_gguf("models/llama-q8_0.gguf"), is_gguf("models/llama")
    (True, False)
    """
    return Path(path).suffix.lower() == SUFFIX
