"""The tree nodes of a pass: their depths, and attention masks after any number of committed tokens."""

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64, Integers
from treeopt.trees import TokenTree

NOT_FED = -1
"""Feed index of a node that was not fed."""
MASK_TOKENS = 64
"""Capacities of masks are multiples of this, so that a mask is reused while the sequence grows."""


class PassNodes:
    """The nodes that one pass feeds.

    Args:
        depth: (rows,), position of each after the committed tokens, from 0; siblings share one.
        visible: bool (rows, start + rows): which nodes of this step, fed earlier or in this pass, each attends to, besides
            all committed tokens.  None for a chain, in which each attends to all before it.
        start: nodes that were fed earlier in the step.
    """

    def __init__(self, *, depth: Integers, visible: Bool | None = None, start: int = 0) -> None:
        self.depth, self.start = depth, start
        self.rows = len(depth)
        self.is_chain = visible is None
        if visible is not None:
            self.visible = visible
        self._on_device: dict[object, Tensor] = {}
        self._masks: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        """Zeros, "may attend", left of the nodes' own mask."""

    @classmethod
    def whole(cls, tree: TokenTree) -> "PassNodes":
        """Return all nodes of a tree."""
        return cls(depth=tree.depth, visible=tree.ancestor_mask)

    @staticmethod
    @lru_cache(maxsize=64)
    def chain(count: int) -> "PassNodes":
        return PassNodes(depth=np.arange(count))

    @cached_property
    def visible(self) -> Bool:
        """Bool (rows, start + rows): the nodes, fed earlier or in this pass, that each attends to."""
        return np.tri(self.rows, self.start + self.rows, self.start, dtype=np.bool_)

    @cached_property
    def sees_all(self) -> bool:
        """Whether each node attends to all others, as a single node does."""
        return bool(self.visible.all())

    @cached_property
    def parents(self) -> Int64:
        """(rows,): feed index of each node's parent, which is the last other node that it attends to; 0 for the root."""
        above = self.visible.copy()
        rows, columns = above.shape
        above[np.arange(rows), self.start + np.arange(rows)] = False
        last = columns - 1 - above[:, ::-1].argmax(1)
        parents: Int64 = np.where(above.any(1), last, 0)
        return parents

    def depth_on(self, device: torch.device) -> Tensor:
        """Return the depths, int64 (rows,), on a device."""
        return self._cached(("depth", device), lambda: torch.tensor(self.depth, dtype=torch.int64, device=device))

    def parents_on(self, device: torch.device, first: int) -> Tensor:
        """Return `parents`, counted from `first`, on a device."""
        return self._cached(("parents", device, first), lambda: torch.from_numpy(self.parents - first).to(device))

    def visible_on(self, device: torch.device, columns: int) -> Tensor:
        """Return `visible` on a device, padded with False to (rows, columns)."""

        def pad() -> Tensor:
            visible = torch.zeros((self.rows, columns), dtype=torch.bool)
            visible[:, : self.visible.shape[1]] = torch.tensor(self.visible)
            return visible.to(device)

        return self._cached(("visible", device, columns), pad)

    def _cached(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        tensor = self._on_device.get(key)
        if tensor is None:
            tensor = self._on_device[key] = make()
        return tensor

    def mask_after(self, length: int, *, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Return the additive attention mask (rows, length + start + rows) after `length` tokens; None if nothing is hidden.

        One buffer serves all lengths up to its capacity: dropping columns on the left gives the mask after a shorter
        sequence, on a CPU as a view.

            capacity columns of 0 | ancestor mask        length = 3:   0 0 0 | ancestor mask
        """
        if self.sees_all:
            return None
        columns = length + self.visible.shape[1]
        buffer = self._masks.get((device, dtype))
        if buffer is None or columns > buffer.shape[1]:
            capacity = MASK_TOKENS * (length // MASK_TOKENS + 1)
            buffer = torch.zeros((self.rows, capacity + self.visible.shape[1]), dtype=dtype, device=device)
            nodes = buffer[:, capacity:].fill_(float("-inf"))  # inverting `visible` would need its memory again
            nodes.masked_fill_(torch.tensor(self.visible, device=device), 0)  # a copy: numpy's array may be read-only
            self._masks[device, dtype] = buffer
        mask = buffer[:, buffer.shape[1] - columns :]
        # GPU kernels read 16 aligned bytes at a time; a view may begin anywhere
        return mask.clone(memory_format=torch.contiguous_format) if mask.is_cuda else mask


def build_device_mask(visible: Tensor, lengths: Tensor, kv_length: int, dtype: torch.dtype) -> Tensor:
    """Return the additive attention mask (sequences, 1, n, kv_length), whose shape does not depend on the lengths.

    Args:
        visible: bool (sequences, n, columns), the nodes that each fed node may attend to.
        lengths: int64 (sequences,), committed tokens; only the device reads them.
        kv_length: padded KV length; slots after the nodes are hidden.
        dtype: of the mask.
    """
    sequences, rows, last = visible.shape[0], visible.shape[1], visible.shape[2] - 1
    columns = torch.arange(kv_length, device=visible.device) - lengths[:, None]
    seen = visible.gather(2, columns.clamp(0, last)[:, None].expand(sequences, rows, kv_length))
    hidden = (~seen | (columns > last)[:, None]) & (columns >= 0)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=visible.device).masked_fill_(hidden, float("-inf"))[:, None]


def hide_before_window(mask: Tensor, window: int) -> Tensor:
    """Return an additive mask (..., rows, columns) that also hides slots before each row's sliding window.

    A row attends to one token per position of its path, its own last.  So the tokens within the window are the last
    `window` tokens that it attends to: siblings share a position, and neither attends to the other.
    """
    if mask.shape[-1] <= window:
        return mask
    seen = (mask == 0).cumsum(-1, dtype=torch.int32)
    return mask.masked_fill(seen <= seen[..., -1:] - window, float("-inf"))
