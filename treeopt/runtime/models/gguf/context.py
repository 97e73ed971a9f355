"""One context of llama.cpp: a cache in which a token may belong to several sequences, and passes over it."""

import ctypes
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int32
from treeopt.errors import TreeoptError
from treeopt.runtime.models.gguf.handle import Handle
from treeopt.runtime.models.gguf.library import last_error, library

TOKENS_AT_ONCE = 512
"""Most tokens that llama.cpp computes together, its own default."""
F32, F16 = 0, 1
"""Number formats of keys and values, as `ggml_type` numbers them."""


def most_sequences() -> int:
    """Return how many sequences a context of this build may have."""
    found: int = library().llama_max_parallel_sequences()
    return found


class Context:
    """A cache and what computes with it, on as many threads as torch has.

    Args:
        model: with its weights.
        capacity: tokens that fit in, of all sequences together.
        sequences: most of them.
        exact: whether keys and values are float32, not float16.
    """

    def __init__(self, model: Handle, capacity: int, *, sequences: int, exact: bool) -> None:
        self._library = found = library()
        self._vocabulary = model.vocabulary_size
        options = found.llama_context_default_params()
        # llama.cpp ends the process where a pass has more tokens than these, or they are fewer than the sequences
        options.n_ctx = options.n_batch = self._most_tokens = max(capacity, sequences)
        options.n_outputs_max = options.n_outputs_max_per_seq = 0  # as many as tokens
        options.n_ubatch = min(options.n_batch, TOKENS_AT_ONCE)
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        options.type_k = options.type_v = F32 if exact else F16
        options.flash_attn_type = self._library.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds by what shares the pass
        options.kv_unified = options.swa_full = options.no_perf = True
        self._context = found.llama_init_from_model(model.pointer, options)
        if not self._context:
            raise TreeoptError(
                f"{model.path}: no room for a text of {capacity} tokens ({last_error()}). Take a shorter one."
            )
        self._memory = found.llama_get_memory(self._context)
        weakref.finalize(self, _free, self._context, model)  # the model stays as long as its contexts

    def copy(self, source: int, to: int, first: int, end: int) -> None:
        self._library.llama_memory_seq_cp(self._memory, source, to, first, end)

    def remove(self, sequence: int, first: int, end: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, sequence, first, end)

    def clear(self) -> None:
        """Forget every token."""
        self._library.llama_memory_clear(self._memory, False)

    def run(self, tokens: Int32, positions: Int32, counts: Int32, ids: Int32, *, logits: bool) -> Tensor | None:
        """Feed tokens; return the logits (n, V) after each in float32, or None where they are not wanted.

        Args:
            tokens: int32 (n,).
            positions: int32 (n,), in the sequences of each token.
            counts: int32 (n,), how many sequences each token belongs to.
            ids: int32 (sum of counts,), of these sequences.
            logits: whether they are wanted.

        Raises TreeoptError where llama.cpp does not take them.
        """
        count = len(tokens)
        last_error()  # forget those of others
        addresses = ids.ctypes.data + ids.itemsize * (counts.cumsum(dtype=np.int64) - counts)
        wanted = np.full(count, logits, np.int8)
        batch = self._library.llama_batch(
            n_tokens=count,
            token=_at(tokens, ctypes.c_int32),
            pos=_at(positions, ctypes.c_int32),
            n_seq_id=_at(counts, ctypes.c_int32),
            seq_id=_at(addresses, ctypes.POINTER(ctypes.c_int32)),
            logits=_at(wanted, ctypes.c_int8),
        )
        if count > self._most_tokens or self._library.llama_decode(self._context, batch) != 0:
            raise TreeoptError(
                f"llama.cpp: did not take a pass of {count} tokens ({last_error()}). Take a smaller tree."
            )
        if not logits:
            return None
        found = self._library.llama_get_logits(self._context)
        return torch.from_numpy(np.ctypeslib.as_array(found, (count, self._vocabulary)).copy())


def _at(values: Any, kind: Any) -> Any:
    """Return a pointer to the numbers of an array, which must outlive it."""
    return ctypes.cast(values.ctypes.data, ctypes.POINTER(kind))


def _free(context: Any, model: Any) -> None:  # noqa: ARG001, held until now
    library().llama_free(context)
