"""The tokenizer of a model folder."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as FastTokenizer

from treeopt.errors import FormatError, TreeoptError
from treeopt.texts.chat_template import chat_template, render_message, special_tokens

UNFINISHED = "\ufffd"
"""Decoded text ends with it if the last character is incomplete."""
FAST_FILE = "tokenizer.json"
WITHOUT_CHAT = "Or use --no-chat, which leaves prompts as they are."
SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model", "qwen.tiktoken", "spiece.model")
"""Vocabularies that only transformers reads."""
CONTEXT_TOKENS = 8
"""Previous tokens that may change how a token is decoded."""


class Tokenizer:
    """The fast tokenizer of a folder, or that of transformers if there is none.

    Raises TreeoptError if the folder has no tokenizer, or one that needs transformers, which is not installed;
    FormatError if the tokenizer cannot be read.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._backend: _Backend = _backend(self._folder)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by token, added ones included."""
        return self._backend.vocabulary()

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of special and added tokens."""
        return frozenset(self._backend.added_ids())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with special tokens such as the beginning of a sequence."""
        return self._backend.encode(text, special=True)

    def encode_without_special(self, text: str) -> list[int]:
        """Return the token ids of a text without adding special tokens."""
        return self._backend.encode(text, special=False)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a chat template; raises FormatError if its `tokenizer_config.json` cannot be read."""
        return self._template is not None

    def chat(self, text: str) -> list[int]:
        """Return the token ids of `chat_text`, whose template contains the special tokens."""
        return self.encode_without_special(self.chat_text(text))

    def chat_text(self, text: str) -> str:
        """Return a user's message in the folder's chat template, with the generation prompt.

        Raises TreeoptError if the folder has no chat template, FormatError if it cannot be rendered.
        """
        if self._template is None:
            raise TreeoptError(f"{self._folder}: no chat template. Is it a base model? Then use --no-chat.")
        try:
            return render_message(self._template, text, self._special_tokens)
        except Exception as error:  # noqa: BLE001, a template may raise anything
            raise FormatError(self._folder, "chat_template", f"cannot be rendered ({error}). {WITHOUT_CHAT}") from None

    def decode(self, tokens: Iterable[int]) -> str:
        return self._backend.decode(list(tokens))

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of token ids piece by piece, in whole characters.

        Tokens are decoded with the previous ones, at first the last of `after`, because some tokenizers decode the first
        token of a text differently.
        """
        previous: list[int] = list(after[-CONTEXT_TOKENS:])
        pending: list[int] = []
        for token in tokens:
            pending.append(token)
            text = self.decode([*previous, *pending])
            if not text.endswith(UNFINISHED):
                yield text[len(self.decode(previous)) :]
                previous, pending = pending, []
        if pending:
            yield self.decode([*previous, *pending])[len(self.decode(previous)) :]

    @cached_property
    def _template(self) -> str | None:
        return chat_template(self._folder)

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        return special_tokens(self._folder)


class _Backend(Protocol):
    def vocabulary(self) -> dict[str, int]: ...
    def added_ids(self) -> Iterable[int]: ...
    def encode(self, text: str, *, special: bool) -> list[int]: ...
    def decode(self, tokens: list[int]) -> str: ...


class _FastBackend:
    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001, the library raises nothing more specific
            raise FormatError(path, "content", f"expected a fast tokenizer ({error}).") from None
        self._tokenizer.no_truncation()  # the file may contain settings of the training
        self._tokenizer.no_padding()

    def vocabulary(self) -> dict[str, int]:
        tokens: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return tokens

    def added_ids(self) -> Iterable[int]:
        ids: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        return ids

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text


class _TransformersBackend:
    def __init__(self, folder: Path) -> None:
        try:
            import transformers
        except ImportError:
            raise TreeoptError(
                f"{folder}: a tokenizer without tokenizer.json needs transformers. Install treeopt[hf]."
            ) from None
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # noqa: BLE001, missing packages, unknown classes, broken files
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FormatError(folder, "tokenizer", f"transformers cannot read it ({reason}).") from None

    def vocabulary(self) -> dict[str, int]:
        tokens: dict[str, int] = self._tokenizer.get_vocab()
        return tokens

    def added_ids(self) -> Iterable[int]:
        return {*self._tokenizer.added_tokens_decoder, *self._tokenizer.all_special_ids}

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return ids

    def decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _backend(folder: Path) -> _Backend:
    if (folder / FAST_FILE).is_file():
        return _FastBackend(folder / FAST_FILE)
    if any((folder / name).is_file() for name in SLOW_FILES):
        return _TransformersBackend(folder)
    raise TreeoptError(f"{folder / FAST_FILE}: no such file. Expected the model's tokenizer next to its weights.")
