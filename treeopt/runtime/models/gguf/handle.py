"""What llama.cpp has loaded of a GGUF file: the vocabulary alone, or the weights too."""

import ctypes
import weakref
from pathlib import Path

from treeopt.errors import FormatError
from treeopt.runtime.models.gguf.library import last_error, library

VALUE_BYTES = 65_536
"""Of a value that is read as text."""


class Handle:
    """What llama.cpp has loaded of a file; freed with the last reference to it.

    Raises FormatError with llama.cpp's reason where it cannot be loaded.
    """

    def __init__(self, path: Path, *, only_vocabulary: bool) -> None:
        self.path = path
        self._library = found = library()
        options = found.llama_model_default_params()
        options.vocab_only = only_vocabulary
        options.n_gpu_layers = 0
        # ggml's AMX kernels end the process with some weights (llama.cpp issue 20824): without them, no other layout
        options.use_extra_bufts = b"AMX_INT8 = 1" not in found.llama_print_system_info()
        last_error()
        self.pointer = found.llama_model_load_from_file(str(path).encode(), options)
        if not self.pointer:
            raise FormatError(path, "content", f"llama.cpp cannot load it ({last_error()}). Is the file complete?")
        weakref.finalize(self, found.llama_model_free, self.pointer)
        self.vocabulary = found.llama_model_get_vocab(self.pointer)
        self.vocabulary_size: int = found.llama_vocab_n_tokens(self.vocabulary)

    @property
    def parameters(self) -> int:
        """Weights, each counted once."""
        found: int = self._library.llama_model_n_params(self.pointer)
        return found

    @property
    def cached_numbers(self) -> int:
        """Numbers that a cache keeps of a token."""
        own, model = self._library, self.pointer
        heads = own.llama_model_n_head(model)
        size = own.llama_model_n_embd(model) // max(1, heads)
        found: int = 2 * own.llama_model_n_layer(model) * own.llama_model_n_head_kv(model) * size
        return found

    @property
    def keeps_a_state(self) -> bool:
        """Whether a layer keeps a state that has read every token, or the model reads its text both ways."""
        own, model = self._library, self.pointer
        tests = (own.llama_model_is_recurrent, own.llama_model_is_hybrid, own.llama_model_has_encoder)
        return any(test(model) for test in tests)

    @property
    def format_name(self) -> str:
        """Number format of most weights, such as `q8_0`."""
        told = self.value("general.file_type")  # known without the weights
        number = int(told) if told else self._library.llama_model_ftype(self.pointer)
        name: bytes = self._library.llama_ftype_name(number)
        shown = name.decode().rpartition(")")[2]  # a note in brackets may stand before it
        return shown.strip().lower().removeprefix("all ").replace(" ", "")

    def value(self, key: str) -> str | None:
        """Return a value of the file's metadata as text, None where it is not there."""
        buffer = ctypes.create_string_buffer(VALUE_BYTES)
        count = self._library.llama_model_meta_val_str(self.pointer, key.encode(), buffer, VALUE_BYTES)
        return None if count < 0 else buffer.value.decode("utf-8", "replace")
