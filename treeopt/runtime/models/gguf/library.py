"""llama.cpp through llama-cpp-python, loaded when the first GGUF model is named; its log is not printed."""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError, TreeoptError

ERROR_LEVEL = 4
"""`GGML_LOG_LEVEL_ERROR` in llama.cpp's log."""
VALUE_BYTES = 65_536
"""Buffer size for a metadata value."""
_errors: list[str] = []


@cache
def library() -> Any:
    """Return the module with llama.cpp's C functions; raises TreeoptError if it is not installed."""
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise TreeoptError(
            f'llama-cpp-python: cannot be loaded ({error}). Install it with `pip install "treeopt[gguf]"` for GGUF models.'
        ) from None
    llama_cpp.llama_log_set(_log_callback(llama_cpp.llama_log_callback), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def pop_error() -> str:
    """Return the first logged error since the last call, without the function's name, and clear the log."""
    first = _errors[0] if _errors else "llama.cpp gives no reason"
    _errors.clear()
    return " ".join(first.rpartition(": error loading model: ")[2].split())


@cache  # the library keeps no reference to it
def _log_callback(kind: Callable[[Any], Any]) -> Any:
    def log(level: int, text: bytes, _: object) -> None:
        if level == ERROR_LEVEL:
            _errors.append(text.decode("utf-8", "replace"))

    return kind(log)


class Handle:
    """A GGUF file that llama.cpp has loaded: its vocabulary, and unless `only_vocabulary` its weights.

    Raises FormatError with llama.cpp's reason if it cannot be loaded.
    """

    def __init__(self, path: Path, *, only_vocabulary: bool) -> None:
        self.path = path
        self._library = library()
        options = self._library.llama_model_default_params()
        options.vocab_only = only_vocabulary
        options.n_gpu_layers = 0
        # ggml's AMX kernels abort with some weights (llama.cpp issue 20824), so weights keep their layout there
        options.use_extra_bufts = b"AMX_INT8 = 1" not in self._library.llama_print_system_info()
        pop_error()
        self.pointer = self._library.llama_model_load_from_file(str(path).encode(), options)
        if not self.pointer:
            raise FormatError(path, "content", f"llama.cpp cannot load it ({pop_error()}). Is the file complete?")
        weakref.finalize(self, self._library.llama_model_free, self.pointer)
        self.vocabulary = self._library.llama_model_get_vocab(self.pointer)
        self.vocabulary_size: int = self._library.llama_vocab_n_tokens(self.vocabulary)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return int(self._library.llama_model_n_params(self.pointer))

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        return int(self._library.llama_model_size(self.pointer))

    @property
    def cached_numbers(self) -> int:
        """Keys and values per token."""
        llama, model = self._library, self.pointer
        heads = llama.llama_model_n_head(model)
        size = llama.llama_model_n_embd(model) // max(1, heads)
        return int(2 * llama.llama_model_n_layer(model) * llama.llama_model_n_head_kv(model) * size)

    @property
    def has_recurrent_state(self) -> bool:
        """Whether a layer keeps a recurrent state, or an encoder reads the sequence in both directions."""
        llama, model = self._library, self.pointer
        tests = (llama.llama_model_is_recurrent, llama.llama_model_is_hybrid, llama.llama_model_has_encoder)
        return any(test(model) for test in tests)

    @property
    def weight_dtype(self) -> str:
        """Dtype of most weights, such as `q8_0`."""
        file_type = self.value("general.file_type")  # readable without the weights
        number = int(file_type) if file_type else self._library.llama_model_ftype(self.pointer)
        name: bytes = self._library.llama_ftype_name(number)
        shown = name.decode().rpartition(")")[2]  # a note in brackets may precede it
        return shown.strip().lower().removeprefix("all ").replace(" ", "")

    def value(self, key: str) -> str | None:
        """Return a value of the file's metadata as text; None without one."""
        buffer = ctypes.create_string_buffer(VALUE_BYTES)
        count = self._library.llama_model_meta_val_str(self.pointer, key.encode(), buffer, VALUE_BYTES)
        return None if count < 0 else buffer.value.decode("utf-8", "replace")
