"""The tokenizer of a GGUF file, by llama.cpp's own functions."""

import ctypes
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from treeopt.runtime.models.gguf.library import Handle, library
from treeopt.texts.tokenizer import Tokenizer

UNUSED = 2
"""Attribute of padding tokens, `LLAMA_TOKEN_ATTR_UNUSED`."""
ADDED = 1 | 8 | 16
"""Attributes of unknown, control and user-defined tokens: `LLAMA_TOKEN_ATTR_UNKNOWN`, `…_CONTROL`, `…_USER_DEFINED`."""


class GGUFTokenizer(Tokenizer):
    """Encodes and decodes as llama.cpp does."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._folder = handle.path
        self._backend = _Functions(handle)

    @cached_property
    def _template(self) -> str | None:
        source = library().llama_model_chat_template(self._handle.pointer, None)
        return None if source is None else source.decode("utf-8", "replace")

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        llama, vocabulary = library(), self._handle.vocabulary
        tokens = {"bos_token": llama.llama_vocab_bos(vocabulary), "eos_token": llama.llama_vocab_eos(vocabulary)}
        return {
            name: llama.llama_vocab_get_text(vocabulary, token).decode("utf-8", "replace")
            for name, token in tokens.items()
            if token >= 0
        }


class _Functions:
    """llama.cpp's functions of one vocabulary."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._library = library()

    def vocabulary(self) -> dict[str, int]:
        """Return token ids by token, without padding tokens."""
        llama, vocabulary = self._library, self._handle.vocabulary
        used = (token for token in range(self._handle.vocabulary_size) if not self._has(token, UNUSED))
        return {llama.llama_vocab_get_text(vocabulary, token).decode("utf-8", "replace"): token for token in used}

    def added_ids(self) -> Iterable[int]:
        return (token for token in range(self._handle.vocabulary_size) if self._has(token, ADDED))

    def _has(self, token: int, attributes: int) -> bool:
        return bool(self._library.llama_vocab_get_attr(self._handle.vocabulary, token) & attributes)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids, with `special` preceded by the tokens that start a sequence."""
        data = text.encode()

        def call(size: int) -> tuple[int, Any]:
            tokens = (ctypes.c_int32 * size)()
            # parses special tokens such as <|user|> within the text, as the fast tokenizers do
            return self._library.llama_tokenize(
                self._handle.vocabulary, data, len(data), tokens, size, special, True
            ), tokens

        count, tokens = call(len(data) + 2)
        if count < 0:
            count, tokens = call(-count)
        return list(tokens[:count])

    def decode(self, tokens: list[int]) -> str:
        """Return the text; an incomplete character becomes U+FFFD."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)

        def call(size: int) -> tuple[int, Any]:
            text = ctypes.create_string_buffer(size)
            return self._library.llama_detokenize(
                self._handle.vocabulary, ids, len(tokens), text, size, False, True
            ), text

        count, text = call(16 * len(tokens) + 1)
        if count < 0:
            count, text = call(-count)
        return bytes(text.raw[:count]).decode("utf-8", "replace")
