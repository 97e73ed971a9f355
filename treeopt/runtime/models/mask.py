"""Attention masks of tree nodes behind a text whose length changes every step."""

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
        self.all_visible = bool(visible.all())
        self._visible = visible
        self._capacity = capacity
        self._dtype, self._device = dtype, device
        self._buffer: Tensor | None = None  # made when it is needed: a pass over several texts takes a mask of its own

    def behind(self, length: int) -> Tensor | None:
        """Return the mask behind `length` committed tokens, or None when every node sees everything."""
        if self.all_visible:
            return None
        if self._buffer is None:
            self._buffer = self._filled()
        mask = self._buffer[:, self._capacity - length :]
        # kernels on a GPU read 16 bytes at a time, and a view may begin anywhere
        return mask.clone(memory_format=torch.contiguous_format) if mask.is_cuda else mask

    def _filled(self) -> Tensor:
        rows, columns = self._visible.shape
        buffer = torch.zeros((rows, self._capacity + columns), device=self._device, dtype=self._dtype)
        nodes = buffer[:, self._capacity :].fill_(float("-inf"))  # turning `visible` round would take its room again
        nodes.masked_fill_(self._visible.to(self._device), 0)
        return buffer


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
