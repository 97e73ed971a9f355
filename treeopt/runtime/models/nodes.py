"""The nodes of a tree that a pass feeds: their depths, and attention masks for them after a text of any length."""

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
"""A mask is made for so many tokens more than the text has, rounded, and serves while the text grows by that."""


class PassNodes:
    """The nodes that one pass feeds.

    Args:
        depth: (rows,), place of each after the committed tokens, 0 the first; siblings share one.
        visible: bool (rows, start + rows), the nodes, fed before or now, that each sees beside the text; None for a chain,
            in which each sees all before it.
        start: nodes that were fed before in this step.
    """

    def __init__(self, *, depth: Integers, visible: Bool | None = None, start: int = 0) -> None:
        self.depth, self.start = depth, start
        self.rows = len(depth)
        self.is_chain = visible is None
        if visible is not None:
            self.visible = visible
        self._on_device: dict[object, Tensor] = {}
        self._masks: dict[tuple[torch.device, torch.dtype], TreeMask] = {}

    @classmethod
    def whole(cls, tree: TokenTree) -> "PassNodes":
        """Return all nodes of a tree at once."""
        return cls(depth=tree.depth, visible=tree.ancestor_mask)

    @staticmethod
    def chain(count: int) -> "PassNodes":
        """Return so many nodes, each the child of the one before."""
        return _chain(count)

    @cached_property
    def visible(self) -> Bool:
        """Bool (rows, start + rows): the nodes, fed before or now, that each sees."""
        return np.tri(self.rows, self.start + self.rows, self.start, dtype=np.bool_)

    @cached_property
    def sees_all(self) -> bool:
        """Whether each node sees all others, as one alone does."""
        return bool(self.visible.all())

    @cached_property
    def parents(self) -> Int64:
        """(rows,): feed index of each node's parent, the last node that it sees but itself; 0 of the root."""
        above = self.visible.copy()
        rows, columns = above.shape
        above[np.arange(rows), self.start + np.arange(rows)] = False
        last = columns - 1 - above[:, ::-1].argmax(1)
        parents: Int64 = np.where(above.any(1), last, 0)
        return parents

    def depth_on(self, device: torch.device) -> Tensor:
        """Return the depths, int64 (rows,), on a device."""
        return self._stored(("depth", device), lambda: torch.tensor(self.depth, dtype=torch.int64, device=device))

    def parents_on(self, device: torch.device) -> Tensor:
        """Return `parents` on a device."""
        return self._stored(("parents", device), lambda: torch.from_numpy(self.parents).to(device))

    def visible_on(self, device: torch.device, columns: int) -> Tensor:
        """Return what each node sees, bool (rows, columns), on a device; columns after the nodes' are False."""

        def padded() -> Tensor:
            visible = torch.zeros((self.rows, columns), dtype=torch.bool)
            visible[:, : self.visible.shape[1]] = torch.tensor(self.visible)
            return visible.to(device)

        return self._stored(("visible", device, columns), padded)

    def _stored(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Return what was made for a key, made now if it was not."""
        found = self._on_device.get(key)
        if found is None:
            found = self._on_device[key] = make()
        return found

    def mask_after(self, length: int, *, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Return the additive attention mask (rows, length + start + rows) after a text; None where all is seen."""
        if self.sees_all:
            return None
        mask = self._masks.get((device, dtype))
        if mask is None or length > mask.capacity:
            capacity = MASK_TOKENS * (length // MASK_TOKENS + 1)
            visible = torch.tensor(self.visible)  # a copy, because torch warns of what cannot be written to
            mask = self._masks[device, dtype] = TreeMask(visible, capacity, dtype=dtype, device=device)
        return mask.after(length)


@lru_cache(maxsize=64)
def _chain(count: int) -> PassNodes:
    return PassNodes(depth=np.arange(count))


class TreeMask:
    """Additive attention mask (rows, length + columns) for any length, without building it anew.

    A buffer (rows, capacity + columns) holds zeros, "may attend", left of the nodes' own mask; dropping columns from
    the left gives the mask for a shorter text, on a CPU as a view:

        capacity columns of 0 | ancestor mask        length = 3:   0 0 0 | ancestor mask

    Args:
        visible: bool (rows, columns), the nodes that each fed node may attend to.
        capacity: longest text that can stand before the tree.
    """

    def __init__(self, visible: Tensor, capacity: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        rows, columns = visible.shape
        self._buffer = torch.zeros((rows, capacity + columns), device=device, dtype=dtype)
        nodes = self._buffer[:, capacity:].fill_(float("-inf"))  # turning `visible` round would take its room again
        nodes.masked_fill_(visible.to(device), 0)

    def after(self, length: int) -> Tensor:
        """Return the mask after `length` committed tokens."""
        mask = self._buffer[:, self.capacity - length :]
        # kernels on a GPU read 16 bytes at a time, and a view may begin anywhere
        return mask.clone(memory_format=torch.contiguous_format) if mask.is_cuda else mask


def mask_on_device(visible: Tensor, lengths: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """Return the additive attention mask (sequences, 1, n, extent) of nodes, in a shape that no text length changes.

    Args:
        visible: bool (sequences, n, columns), the nodes that each fed node may attend to.
        lengths: int64 (sequences,), committed tokens; they are read on the device only.
        extent: slots attended over; those after the nodes' are hidden.
        dtype: of the mask.
    """
    sequences, rows, last = visible.shape[0], visible.shape[1], visible.shape[2] - 1
    columns = torch.arange(extent, device=visible.device) - lengths[:, None]
    seen = visible.gather(2, columns.clamp(0, last)[:, None].expand(sequences, rows, extent))
    hidden = (~seen | (columns > last)[:, None]) & (columns >= 0)[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=visible.device).masked_fill_(hidden, float("-inf"))[:, None]


def hide_before_window(mask: Tensor, window: int) -> Tensor:
    """Return an additive mask (..., rows, columns) that also hides what lies before each row's sliding window.

    A row sees one token for each position of its path, its own last. So the tokens at positions above its own minus
    `window` are the last `window` tokens that it sees: siblings share a position, and neither sees the other.
    """
    if mask.shape[-1] <= window:
        return mask
    seen = (mask == 0).cumsum(-1, dtype=torch.int32)
    return mask.masked_fill(seen <= seen[..., -1:] - window, float("-inf"))
