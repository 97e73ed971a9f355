"""Keys and values of a text, preallocated, with the tree's nodes behind it and the accepted path moved in place."""

from collections.abc import Sequence

import torch

from treeopt.runtime.config import ModelConfig


class KVCache:
    """Keys and values of all layers.

        slot:   0 … length-1        length … length+n-1
        holds:  committed tokens    tree nodes of the step, in the order they were fed

    `keep(path)` moves the accepted nodes' entries to length, length+1, … and makes them committed; the rest of the
    tree is forgotten because the next step writes over it.
    """

    def __init__(self, config: ModelConfig, capacity: int, *, dtype: torch.dtype, device: torch.device) -> None:
        shape = (2, config.layers, 1, config.key_value_heads, capacity, config.head_size)
        self._store = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = list(zip(self._store[0], self._store[1], strict=True))
        """One (keys, values) pair a layer, each (1, key_value_heads, capacity, head_size)."""
        self.capacity = capacity
        self.length = 0

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tree nodes at the offsets `path` from `length`, rising from 0, and drop the others.

        With 2 committed tokens A B and nodes r x y z behind them, keep([0, 2]) leaves A B r y.
        """
        count = len(path)
        if path[-1] != count - 1:  # otherwise they already stand where they belong
            offsets = torch.tensor(path).to(self._store.device, non_blocking=True)
            moved = self._store.index_select(4, self.length + offsets)
            self._store[:, :, :, :, self.length : self.length + count] = moved
        self.length += count

    def clear(self) -> None:
        """Forget every token."""
        self.length = 0
