"""Keys and values of several sequences in preallocated memory."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import SequenceCache
from treeopt.runtime.models.rotary import Rotations


class KVStore:
    """Keys and values of all layers for several sequences.

    Each sequence has one slot more than its capacity: captured passes write their padding there, and nothing reads it.

    Args:
        store: (2, layers, sequences, key_value_heads, capacity + 1, head_size), keys and values.
        rotations: complex64 (positions, 1, head_size / 2), of every position that a token in the cache can have.
    """

    def __init__(self, store: Tensor, rotations: Tensor) -> None:
        self.entries = store
        self.sequences, self.capacity = store.shape[2], store.shape[4] - 1
        self.layers: list[tuple[Tensor, Tensor]] = list(zip(store[0], store[1], strict=True))
        """One (keys, values) pair per layer, each (sequences, key_value_heads, capacity + 1, head_size)."""
        self.rotations = rotations  # a captured graph reads this memory

    @classmethod
    def empty(
        cls, config: ModelConfig, capacity: int, sequences: int, *, rotations: Rotations, dtype: torch.dtype
    ) -> "KVStore":
        """Return a store with `capacity` slots per sequence."""
        shape = (2, config.layers, sequences, config.key_value_heads, capacity + 1, config.head_size)
        reachable = min(capacity, 2 * config.max_positions)  # a tree may be as deep as its sequence is long
        return cls(torch.zeros(shape, dtype=dtype, device=rotations.device), rotations.up_to(reachable))

    @staticmethod
    def sequence_bytes(config: ModelConfig, capacity: int, dtype: torch.dtype) -> int:
        """Return the bytes of the keys and values of one sequence."""
        return 2 * config.layers * config.key_value_heads * (capacity + 1) * config.head_size * dtype.itemsize

    def caches(self) -> list["KVCache"]:
        """Return a cache per sequence."""
        return [KVCache(self, index) for index in range(self.sequences)]


class KVCache(SequenceCache):
    """The keys and values of one sequence.

    Args:
        store: contains them.
        index: of the sequence in the store.
    """

    store: KVStore

    def __init__(self, store: KVStore, index: int) -> None:
        super().__init__(store.capacity)
        self.store, self.index = store, index
        self.layers = [(keys[index : index + 1], values[index : index + 1]) for keys, values in store.layers]
        """One (keys, values) pair per layer, each (1, key_value_heads, capacity + 1, head_size)."""
        self._entries = store.entries[:, :, index]
        on_cpu = store.entries.device.type == "cpu"
        # what `commit` moves; on the CPU as bytes, since numpy copies faster than torch and lacks bfloat16
        self._movable: Any = self._entries.view(torch.uint8).numpy() if on_cpu else self._entries
        self._move_context = nullcontext if on_cpu else torch.inference_mode

    @property
    def rotations(self) -> Tensor:
        """complex64 (positions, 1, head_size / 2)."""
        return self.store.rotations

    def commit(self, path: Sequence[int]) -> None:
        count = len(path)
        if path[-1] != count - 1:  # otherwise the path is already in place
            with self._move_context():
                for slot, node in enumerate(path):  # in ascending order no node is overwritten before it has moved
                    if slot != node:
                        self._movable[:, :, :, self.length + slot] = self._movable[:, :, :, self.length + node]
        self.length += count

    @torch.inference_mode()
    def _zero_nodes(self) -> None:
        self._entries[:, :, :, self.length :] = 0
