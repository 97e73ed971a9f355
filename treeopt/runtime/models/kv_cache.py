"""Keys and values of several sequences in preallocated memory."""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import SequenceCache
from treeopt.runtime.models.rotary import Rotations


class KVStore:
    """Keys and values of all layers for several sequences.

    Each sequence has one slot more than its capacity: captured passes write their padding there, and nothing reads it.
    Rotations, complex64 (positions, 1, head_size / 2), are those of every position that a token in the cache can have,
    or None if the model rotates queries and keys by itself.
    """

    def __init__(self, sequences: int, capacity: int, rotations: Tensor | None = None) -> None:
        self.sequences, self.capacity = sequences, capacity
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        """(keys, values) by layer, each (sequences, key_value_heads, capacity + 1, head_size)."""
        self.entries: list[Tensor] = []
        """The same memory in as few tensors as it was allocated in, each (…, sequences, heads, capacity + 1, size)."""
        self.rotations = torch.empty(0) if rotations is None else rotations  # a captured graph reads this memory

    @classmethod
    def empty(
        cls, config: ModelConfig, capacity: int, sequences: int, *, rotations: Rotations, dtype: torch.dtype
    ) -> "KVStore":
        """Return a store with `capacity` slots per sequence, all layers in one tensor."""
        reachable = min(capacity, 2 * config.max_positions)  # a tree may be as deep as its sequence is long
        store = cls(sequences, capacity, rotations.up_to(reachable))
        shape = (2, config.layers, sequences, config.key_value_heads, capacity + 1, config.head_size)
        keys, values = entries = torch.zeros(shape, dtype=dtype, device=rotations.device)
        store.layers.update(enumerate(zip(keys, values, strict=True)))
        store.entries.append(entries)
        return store

    def add_layer(self, index: int, key: Tensor, value: Tensor) -> None:
        """Allocate a layer for keys and values like these, (batch, heads, n, size)."""
        # zeros, because a batched pass reads masked slots
        keys, values = (
            new.new_zeros((self.sequences, new.shape[1], self.capacity + 1, new.shape[3])) for new in (key, value)
        )
        self.layers[index] = keys, values
        self.entries += [keys, values]

    @staticmethod
    def sequence_bytes(config: ModelConfig, capacity: int, dtype: torch.dtype) -> int:
        return 2 * config.layers * config.key_value_heads * (capacity + 1) * config.head_size * dtype.itemsize

    def caches(self) -> list["KVCache"]:
        return [KVCache(self, index) for index in range(self.sequences)]


class KVCache(SequenceCache):
    """The keys and values of the sequence at `index` in a store."""

    store: KVStore

    def __init__(self, store: KVStore, index: int) -> None:
        super().__init__(store.capacity)
        self.store, self.index = store, index

    @property
    def rotations(self) -> Tensor:
        """complex64 (positions, 1, head_size / 2)."""
        return self.store.rotations

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """One (keys, values) pair per layer, each (1, key_value_heads, capacity + 1, head_size)."""
        own = slice(self.index, self.index + 1)
        return [(keys[own], values[own]) for keys, values in self.store.layers.values()]

    @cached_property
    def _movable(self) -> list[Any]:
        """What `commit` moves, each (…, heads, capacity + 1, size); all layers exist when nodes have been fed."""
        return [movable_entries(entries[..., self.index, :, :, :]) for entries in self.store.entries]

    def commit(self, path: Sequence[int]) -> None:
        first, count = self.length, len(path)
        if path[-1] != count - 1:  # otherwise the path is already in place
            slots = [first + node for node in path]
            slots_on = cache(
                lambda device: torch.tensor(slots).to(device, non_blocking=True)
            )  # one copy for each device
            for entries in self._movable:
                if isinstance(entries, Tensor):
                    with torch.inference_mode():
                        nodes = entries.index_select(-2, slots_on(entries.device))
                        entries[..., first : first + count, :] = nodes
                else:
                    for slot, node in enumerate(path):  # in ascending order no node is overwritten before it has moved
                        if slot != node:
                            entries[..., first + slot, :] = entries[..., first + node, :]
        self.length += count

    @torch.inference_mode()
    def _zero_nodes(self) -> None:
        for entries in self.store.entries:
            entries[..., self.index, :, self.length :, :] = 0


def movable_entries(entries: Tensor) -> Any:
    """Return entries as `commit` moves them: on the CPU as bytes, since numpy copies faster than torch and lacks bfloat16."""
    return entries.view(torch.uint8).numpy() if entries.device.type == "cpu" else entries
