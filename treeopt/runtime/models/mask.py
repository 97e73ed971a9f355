"""Attention masks of tree nodes behind a text whose length changes every step, whole or within a sliding window."""

import torch
from torch import Tensor


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
        self._all_visible = bool(visible.all())
        self._capacity = capacity
        rows, columns = visible.shape
        shape = (0, 0) if self._all_visible else (rows, capacity + columns)
        self._buffer = torch.zeros(shape, device=device, dtype=dtype)
        if not self._all_visible:
            nodes = self._buffer[:, capacity:].fill_(float("-inf"))  # turning `visible` round would take its room again
            nodes.masked_fill_(visible.to(device), 0)

    def behind(self, length: int) -> Tensor | None:
        """Return the mask behind `length` committed tokens, or None when every node sees everything."""
        if self._all_visible:
            return None
        mask = self._buffer[:, self._capacity - length :]
        # kernels on a GPU read 16 bytes at a time, and a view may begin anywhere
        return mask.clone(memory_format=torch.contiguous_format) if mask.is_cuda else mask


def static_mask(visible: Tensor, length: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
    """Return the additive attention mask (rows, extent) of nodes behind a text, in a shape that its length leaves alone.

    Args:
        visible: bool (rows, columns), the nodes that each fed node may attend to.
        length: int64 (), committed tokens; it is read on the device only.
        extent: slots attended over; those behind the nodes' are hidden.
        dtype: of the mask.
    """
    columns = torch.arange(extent, device=visible.device) - length
    seen = visible[:, columns.clamp(0, visible.shape[1] - 1)] & (columns < visible.shape[1])
    hidden = ~seen & (columns >= 0)
    return torch.zeros(hidden.shape, dtype=dtype, device=visible.device).masked_fill_(hidden, float("-inf"))


def hide_before_window(mask: Tensor, window: int) -> Tensor:
    """Return an additive mask (..., rows, columns) that also hides what lies before each row's sliding window.

    A row sees one token for each position of its path, its own last. So the tokens at positions above its own minus
    `window` are the last `window` tokens that it sees: siblings share a position, and neither sees the other.
    """
    if mask.shape[-1] <= window:
        return mask
    seen = (mask == 0).cumsum(-1, dtype=torch.int32)
    return mask.masked_fill(seen <= seen[..., -1:] - window, float("-inf"))
