"""llama.cpp through llama-cpp-python, loaded when the first GGUF model is named: files, and contexts with a cache each.

Its log is not printed.
"""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int32
from treeopt.errors import FormatError, TreeoptError

ERROR_LEVEL = 4
"""`GGML_LOG_LEVEL_ERROR` in llama.cpp's log."""
VALUE_BYTES = 65_536
MICRO_BATCH_TOKENS = 512
"""Tokens that llama.cpp computes together (`n_ubatch`), its own default."""
END = -1
"""Stands for "up to the last position" in `Context.copy` and `Context.remove`."""
F32, F16 = 0, 1
"""`ggml_type` of keys and values."""
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
        return int(self._library.llama_model_n_params(self.pointer))

    @property
    def weight_bytes(self) -> int:
        return int(self._library.llama_model_size(self.pointer))

    @property
    def cached_numbers(self) -> int:
        """Keys and values per token."""
        llama, model, architecture = self._library, self.pointer, self.value("general.architecture")
        size = llama.llama_model_n_embd(model) // max(1, llama.llama_model_n_head(model))
        key, value = (self.value(f"{architecture}.attention.{part}_length") or size for part in ("key", "value"))
        return int(llama.llama_model_n_layer(model) * llama.llama_model_n_head_kv(model) * (int(key) + int(value)))

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


def max_sequence_ids() -> int:
    """Return the largest number of sequence ids in a context of this build."""
    return int(library().llama_max_parallel_sequences())


class Context:
    """A cache for `capacity` tokens of all sequences together, and its passes, on as many threads as torch uses.

    Keys and values are float32 if `exact`, else float16.
    """

    def __init__(self, model: Handle, capacity: int, *, sequences: int, exact: bool) -> None:
        self._library = llama = library()
        self._vocabulary = model.vocabulary_size
        options = llama.llama_context_default_params()
        # llama.cpp aborts if a pass has more tokens than these, or if these are fewer than the sequences
        options.n_ctx = options.n_batch = self._max_tokens = max(capacity, sequences)
        options.n_outputs_max = options.n_outputs_max_per_seq = 0  # no limit
        options.n_ubatch = min(options.n_batch, MICRO_BATCH_TOKENS)
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        options.type_k = options.type_v = F32 if exact else F16
        options.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED  # its rounding depends on the rest of the pass
        options.kv_unified = options.swa_full = options.no_perf = True
        self._context = llama.llama_init_from_model(model.pointer, options)
        if not self._context:
            raise TreeoptError(
                f"{model.path}: no room for a sequence of {capacity} tokens ({pop_error()}). Take a shorter one."
            )
        self._memory = llama.llama_get_memory(self._context)
        weakref.finalize(self, _free, self._context, model)  # the model outlives its contexts

    def copy(self, source: int, to: int, first: int, end: int) -> None:
        """Add the id `to` to the tokens at positions first to end that carry the id `source`."""
        self._library.llama_memory_seq_cp(self._memory, source, to, first, end)

    def remove(self, sequence: int, first: int, end: int) -> None:
        """Remove an id from the tokens at positions first to end; tokens without an id are dropped."""
        self._library.llama_memory_seq_rm(self._memory, sequence, first, end)

    def clear(self) -> None:
        self._library.llama_memory_clear(self._memory, False)

    def run(self, tokens: Int32, positions: Int32, counts: Int32, ids: Int32, *, logits: bool) -> Tensor:
        """Feed tokens; return the logits (n, V) after each in float32, or (0, V) without `logits`.

        Args:
            tokens: int32 (n,).
            positions: int32 (n,), in the sequences of each token.
            counts: int32 (n,), number of sequence ids of each token.
            ids: int32 (sum of counts,), these sequence ids.
            logits: whether to compute them.

        Raises TreeoptError if llama.cpp refuses the pass.
        """
        count = len(tokens)
        pop_error()  # of earlier calls
        addresses = ids.ctypes.data + ids.itemsize * (counts.cumsum(dtype=np.int64) - counts)
        flags = np.full(count, logits, np.int8)
        batch = self._library.llama_batch(
            n_tokens=count,
            token=_pointer_to(tokens, ctypes.c_int32),
            pos=_pointer_to(positions, ctypes.c_int32),
            n_seq_id=_pointer_to(counts, ctypes.c_int32),
            seq_id=_pointer_to(addresses, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer_to(flags, ctypes.c_int8),
        )
        if count > self._max_tokens or self._library.llama_decode(self._context, batch) != 0:
            raise TreeoptError(
                f"llama.cpp: did not take a pass of {count} tokens ({pop_error()}). Take a smaller tree."
            )
        if not logits:
            return torch.empty(0, self._vocabulary)
        pointer = self._library.llama_get_logits(self._context)
        return torch.from_numpy(np.ctypeslib.as_array(pointer, (count, self._vocabulary)).copy())


def _pointer_to(values: Any, kind: Any) -> Any:
    """Return a pointer to the numbers of an array, which must outlive it."""
    return ctypes.cast(values.ctypes.data, ctypes.POINTER(kind))


def _free(context: Any, model: Any) -> None:  # noqa: ARG001, holds a reference until now
    library().llama_free(context)
