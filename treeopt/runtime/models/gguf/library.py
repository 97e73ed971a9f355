"""llama.cpp's C functions through llama-cpp-python, loaded when the first GGUF model is named; its notes are not shown."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from treeopt.errors import TreeoptError

ERROR_LEVEL = 4
"""Of a line in llama.cpp's log, `GGML_LOG_LEVEL_ERROR`."""
_errors: list[str] = []


@cache
def library() -> Any:
    """Return the module of the functions; raises TreeoptError where it is not installed."""
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise TreeoptError(
            f'llama-cpp-python: cannot be loaded ({error}). Install it with `pip install "treeopt[gguf]"` for GGUF models.'
        ) from None
    llama_cpp.llama_log_set(_log_callback(llama_cpp.llama_log_callback), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def last_error() -> str:
    """Return the first error that was told since the last call, without the function's name; forget it."""
    first = _errors[0] if _errors else "llama.cpp gives no reason"
    _errors.clear()
    return " ".join(first.rpartition(": error loading model: ")[2].split())


@cache  # the library keeps no reference to it
def _log_callback(kind: Callable[[Any], Any]) -> Any:
    def note(level: int, text: bytes, _: object) -> None:
        if level == ERROR_LEVEL:
            _errors.append(text.decode("utf-8", "replace"))

    return kind(note)
