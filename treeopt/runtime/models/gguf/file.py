"""A GGUF file: its vocabulary and sizes, read without the weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.folder import hash_file
from treeopt.runtime.models.gguf.library import Handle, library
from treeopt.runtime.models.model import TRAINED_LENGTH, ModelSizes

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer

SUFFIX = ".gguf"
MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFSizes(ModelSizes):
    """Sizes of a model; its sequences are limited by the trained length, or by the sliding window."""

    weight_dtype: str
    """Dtype of most weights, such as `q8_0`."""


class GGUFFile:
    """A file whose parts are read on demand, as those of a `ModelFolder`.

    Each part raises TreeoptError if the file cannot be read, FormatError if it is not a GGUF model.
    """

    why_adapter = None
    dtype = None
    """Not chosen by its configuration: llama.cpp runs the weights as they are."""
    loaded_numbers = 0
    """llama.cpp maps the file."""

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem

    @cached_property
    def content(self) -> Handle:
        """The file without its weights."""
        try:
            with self.path.open("rb") as file:
                magic = file.read(len(MAGIC))
        except OSError as error:
            raise TreeoptError(f"{self.path}: cannot be read ({error.strerror}). Expected a GGUF file.") from None
        if magic != MAGIC:
            raise FormatError(self.path, "content", "expected a GGUF file. Is the download complete?")
        return Handle(self.path, only_vocabulary=True)

    @cached_property
    def sizes(self) -> GGUFSizes:
        handle, llama = self.content, library()
        tokens = range(handle.vocabulary_size)
        max_positions, limited_by = self._read_max_positions()
        return GGUFSizes(
            vocabulary=handle.vocabulary_size,
            max_positions=max_positions,
            limited_by=limited_by,
            end_tokens=tuple(token for token in tokens if llama.llama_vocab_is_eog(handle.vocabulary, token)),
            weight_dtype=handle.weight_dtype,
        )

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from treeopt.runtime.models.gguf.tokenizer import GGUFTokenizer  # models run without it

        return GGUFTokenizer(self.content)

    @cached_property
    def digest(self) -> str:
        return hash_file(self.path)

    def _read_max_positions(self) -> tuple[int, str]:
        """Return the maximum sequence length and what limits it.

        A sliding window limits it, because a sequence within the window gets full attention.
        """
        limits = {TRAINED_LENGTH: "context_length", "sliding window": "attention.sliding_window"}
        lengths = [(length, name) for name, key in limits.items() if (length := self._read_length(key)) is not None]
        if not lengths:
            architecture = self.content.value("general.architecture")
            raise FormatError(
                self.path, f"{architecture}.context_length", "expected the maximum sequence length. Got none."
            )
        return min(lengths, key=lambda limit: limit[0])

    def _read_length(self, key: str) -> int | None:
        """Return a length of the architecture; None without one above 0."""
        text = self.content.value(f"{self.content.value('general.architecture')}.{key}")
        return int(text) or None if text is not None and text.isdecimal() else None


def is_gguf(path: Path | str) -> bool:
    """Return whether a path names a GGUF file.

    >>> is_gguf("models/llama-q8_0.gguf"), is_gguf("models/llama")
    (True, False)
    """
    return Path(path).suffix.lower() == SUFFIX
