"""Where the tokens of a pass stand, in one cache or in one for each text, and what they attend to."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.mask import hide_before_window

BLOCK_ROWS = 512
"""Tokens of a long text that attend to their sliding windows at a time, because the mask grows with their number."""


class Place(Protocol):
    """Where the tokens of a pass stand."""

    @property
    def rotations(self) -> Tensor:
        """Of each token's position."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write a layer's keys and values, and return what the queries attend to.

        Args:
            layer: number of the layer, 0 first.
            query: (batch, heads, n, head_size).
            key: (batch, key_value_heads, n, head_size).
            value: as `key`.

        Returns what `query` has the shape of.
        """

    def within(self, window: int) -> "Place":
        """Return the place for layers with sliding attention, where each token sees `window` tokens at most, itself last."""


class SharedPlace(NamedTuple):
    """The tokens of all texts of one cache, behind one length."""

    cache: KVCache
    rotations: Tensor
    """Of each token's position."""
    slots: slice | Tensor
    """Where keys and values are written."""
    extent: int
    """End of the slots that may be seen."""
    mask: Tensor | None = None
    """Of the slots from `first` to `extent`."""
    causal: bool = False
    """Whether each token sees those before it, and no other."""
    first: int = 0
    """First slot that may be seen."""
    window: int | None = None
    """Sliding window of a causal pass, in tokens."""

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values; arguments as for `attend`."""
        keys, values = self.cache.layers[layer]
        keys[:, :, self.slots] = key
        values[:, :, self.slots] = value

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.write(layer, key, value)
        keys, values = (entries[:, :, self.first : self.extent] for entries in self.cache.layers[layer])
        if self.causal:
            return attend_causally(query, keys, values, self.window)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)

    def within(self, window: int) -> "SharedPlace":
        if self.extent <= window:
            return self
        if self.causal:
            return self._replace(window=window)
        if self.mask is None:
            return self._replace(first=self.extent - window)
        # a captured graph reads the length on the device, so that it cannot leave slots out
        first = max(0, self.cache.length + 1 - window) if isinstance(self.slots, slice) else 0
        return self._replace(first=first, mask=hide_before_window(self.mask[:, first:], window))


class WholeText(NamedTuple):
    """The tokens of texts from their beginning, each of which sees those before it; nothing is kept of them."""

    rotations: Tensor
    """Of each token's position."""
    window: int | None = None
    """Sliding window in tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # noqa: ARG002
        return attend_causally(query, key, value, self.window)

    def within(self, window: int) -> "WholeText":
        return self._replace(window=window)


def attend_causally(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Return what each of n tokens attends to: itself and those before it, `window` tokens at most.

    Args:
        query: (batch, heads, n, head_size).
        keys: (batch, key_value_heads, n, head_size).
        values: as `keys`.
        window: in tokens; None if every token before may be seen.
    """
    count = query.shape[2]
    if window is None or count <= window:
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    positions = torch.arange(count, device=query.device)
    blocks = []
    for start in range(0, count, BLOCK_ROWS):
        rows, columns = slice(start, start + BLOCK_ROWS), slice(max(0, start + 1 - window), start + BLOCK_ROWS)
        before = positions[rows, None] - positions[columns]
        visible = (before >= 0) & (before < window)
        blocks.append(
            F.scaled_dot_product_attention(
                query[:, :, rows], keys[:, :, columns], values[:, :, columns], attn_mask=visible, enable_gqa=True
            )
        )
    return torch.cat(blocks, 2)
