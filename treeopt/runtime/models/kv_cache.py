"""Keys and values of several sequences in preallocated memory; the accepted path is moved in place."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import SequenceCache
from treeopt.runtime.models.rotary import Rotations


class KVStore:
    """Keys and values of all layers, for sequences side by side.

    Each has one slot more than its capacity: what is padded in a captured pass is written there, and nobody reads it.

    Args:
        store: (2, layers, sequences, key_value_heads, capacity + 1, head_size), keys and values.
        rotations: complex64 (positions, 1, head_size / 2), of every position that a token in the cache can have.
    """

    def __init__(self, store: Tensor, rotations: Tensor) -> None:
        self.entries = store
        self.sequences, self.capacity = store.shape[2], store.shape[4] - 1
        self.layers: list[tuple[Tensor, Tensor]] = list(zip(store[0], store[1], strict=True))
        """One (keys, values) pair a layer, each (sequences, key_value_heads, capacity + 1, head_size)."""
        self.rotations = rotations  # held here, because a captured graph reads them where they lie

    @classmethod
    def empty(
        cls, config: ModelConfig, capacity: int, sequences: int, *, rotations: Rotations, dtype: torch.dtype
    ) -> "KVStore":
        """Return a store with room for `capacity` tokens of each sequence."""
        shape = (2, config.layers, sequences, config.key_value_heads, capacity + 1, config.head_size)
        reachable = min(capacity, 2 * config.max_positions)  # a tree may be as deep as its text is long
        return cls(torch.zeros(shape, dtype=dtype, device=rotations.device), rotations.up_to(reachable))

    @staticmethod
    def sequence_bytes(config: ModelConfig, capacity: int, dtype: torch.dtype) -> int:
        """Return the bytes of the keys and values of one sequence."""
        return 2 * config.layers * config.key_value_heads * (capacity + 1) * config.head_size * dtype.itemsize

    def caches(self) -> list["KVCache"]:
        """Return a cache for each sequence."""
        return [KVCache(self, place) for place in range(self.sequences)]


class KVCache(SequenceCache):
    """The keys and values of one sequence.

    Args:
        store: where they lie.
        place: of the sequence there.
    """

    def __init__(self, store: KVStore, place: int) -> None:
        super().__init__(store.capacity)
        self.store, self.place = store, place
        self.layers = [(keys[place : place + 1], values[place : place + 1]) for keys, values in store.layers]
        """One (keys, values) pair a layer, each (1, key_value_heads, capacity + 1, head_size)."""
        self._own = store.entries[:, :, place]
        on_host = store.entries.device.type == "cpu"
        # what keep moves: bytes on the host, whatever the dtype, because a copy there costs numpy less than torch
        self._moved: Any = self._own.view(torch.uint8).numpy() if on_host else self._own
        self._moving = nullcontext if on_host else torch.inference_mode

    @property
    def rotations(self) -> Tensor:
        """complex64 (positions, 1, head_size / 2)."""
        return self.store.rotations

    def keep(self, path: Sequence[int]) -> None:
        count = len(path)
        if path[-1] != count - 1:  # otherwise they already stand where they belong
            with self._moving():
                for place, node in enumerate(path):  # in rising order nothing is overwritten that is still to be moved
                    if place != node:
                        self._moved[:, :, :, self.length + place] = self._moved[:, :, :, self.length + node]
        self.length += count

    @torch.inference_mode()
    def _zero_nodes(self) -> None:
        self._own[:, :, :, self.length :] = 0
