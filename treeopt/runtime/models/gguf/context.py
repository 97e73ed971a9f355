"""One context of llama.cpp: a cache in which a token may carry several sequence ids, and passes over it."""

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int32
from treeopt.errors import TreeoptError
from treeopt.runtime.models.gguf.library import Handle, library, pop_error

MICRO_BATCH_TOKENS = 512
"""Tokens that llama.cpp computes together (`n_ubatch`), its own default."""
END = -1
"""Stands for "up to the last position" in `Context.copy` and `Context.remove`."""
F32, F16 = 0, 1
"""`ggml_type` of keys and values."""


def max_sequence_ids() -> int:
    """Return the largest number of sequence ids in a context of this build."""
    return int(library().llama_max_parallel_sequences())


class Context:
    """A cache and its passes, on as many threads as torch uses.

    Args:
        model: with its weights.
        capacity: tokens of all sequences together.
        sequences: number of sequence ids.
        exact: whether keys and values are float32 instead of float16.
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
        """Drop all tokens."""
        self._library.llama_memory_clear(self._memory, False)

    def run(self, tokens: Int32, positions: Int32, counts: Int32, ids: Int32, *, logits: bool) -> Tensor | None:
        """Feed tokens; return the logits (n, V) after each in float32, or None if not requested.

        Args:
            tokens: int32 (n,).
            positions: int32 (n,), in the sequences of each token.
            counts: int32 (n,), number of sequence ids of each token.
            ids: int32 (sum of counts,), these sequence ids.
            logits: whether to return logits.

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
            return None
        pointer = self._library.llama_get_logits(self._context)
        return torch.from_numpy(np.ctypeslib.as_array(pointer, (count, self._vocabulary)).copy())


def _pointer_to(values: Any, kind: Any) -> Any:
    """Return a pointer to the numbers of an array, which must outlive it."""
    return ctypes.cast(values.ctypes.data, ctypes.POINTER(kind))


def _free(context: Any, model: Any) -> None:  # noqa: ARG001, holds a reference until now
    library().llama_free(context)
