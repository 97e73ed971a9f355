"""Attention in a pass over several texts, each behind a length and a cache of its own: all at once, or in turn."""

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import Place
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.mask import hide_before_window
from treeopt.runtime.models.model import TextRows
from treeopt.runtime.models.ragged_grid import Grid, Span, mask_of, places_in, positions_of

MOST_PADDING = 2.0
"""Texts attend at once where that is at most so many times the scores that they have themselves."""
CALL_BYTES = 2**17
"""On a CPU a call more takes as long as reading so many bytes of a layer's cache; measured on one core of an AMD EPYC."""


def ragged_place(parts: Sequence[TextRows], heads_per_key: int) -> Place:
    """Return where the tokens of several texts stand, one text after the other.

    What is committed stays where it is.  Attention at once goes over as many slots of every text as the longest has, and
    hides those that are not there; where reading these takes longer than a call for each text, or their caches do not lie
    side by side, each attends on its own.

    Args:
        parts: of each text; each cache is of one.
        heads_per_key: queries that share keys and values.
    """
    whole = parts[0].cache.whole
    spans = [Span.of(part, part.cache.place) for part in parts]
    longest = max((part.cache for part in parts), key=lambda cache: cache.capacity)
    rotations = longest.rotations[torch.from_numpy(positions_of(parts)).to(longest.rotations.device)]
    if all(part.cache.whole is whole for part in parts):
        grid = Grid.of(spans)
        if _pays(grid, spans, whole.layers[0][0]):
            return AtOnce(whole, rotations, spans, grid, heads_per_key)
    return InTurn([part.cache for part in parts], rotations, spans)


def _pays(grid: Grid, spans: Sequence[Span], keys: Tensor) -> bool:
    """Return whether one call over a grid is quicker than one for each span.

    Args:
        grid: that holds all spans.
        spans: of each text.
        keys: (places, heads, capacity, head_size) of a layer; its values are as large.
    """
    if grid.texts * grid.tokens * grid.extent > MOST_PADDING * sum(each.tokens * each.extent for each in spans):
        return False
    hidden = grid.texts * grid.extent - sum(each.extent for each in spans)
    slot_bytes = 2 * keys.shape[1] * keys.shape[3] * keys.element_size()
    return keys.device.type != "cpu" or hidden * slot_bytes <= CALL_BYTES * (len(spans) - 1)


def _mask(grid: Grid, spans: Sequence[Span], like: Tensor, repeats: int = 1) -> Tensor | None:
    return mask_of(grid, spans, dtype=like.dtype, device=like.device, repeats=repeats)


def _windowed(mask: Tensor | None, extent: int, window: int, like: Tensor) -> Tensor | None:
    """Return a mask that also hides what lies before the sliding window; None where each token sees every slot."""
    if extent <= window:
        return mask
    mask = like.new_zeros((1, 1, 1, extent)) if mask is None else mask
    return hide_before_window(mask, window)


class AtOnce:
    """Texts whose caches lie side by side attend in one call.

    Args:
        cache: in which their caches lie.
        rotations: of each token's position.
        spans: of each text.
        grid: that holds them.
        heads_per_key: queries that share keys and values; they are read once for all of them.
    """

    def __init__(
        self, cache: KVCache, rotations: Tensor, spans: Sequence[Span], grid: Grid, heads_per_key: int
    ) -> None:
        self.rotations = rotations
        self._layers = cache.layers
        self._grid = grid
        heads, self._size = self._layers[0][0].shape[1], self._layers[0][0].shape[3]
        rows = [each.place * heads * cache.capacity + slot for each in spans for slot in each.slots]
        by_head = torch.tensor(rows)[:, None] + torch.arange(0, heads * cache.capacity, cache.capacity)
        self._slots = by_head.flatten().to(rotations.device)
        """Of each head of each token, where the texts, heads and slots of a layer are counted through."""
        self._in_grid, self._tokens = places_in(grid, spans, rotations.device)
        self._mask = _mask(grid, spans, self._layers[0][0], heads_per_key)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`; there is one batch of all texts' tokens."""
        first, texts, tokens, extent = self._grid
        for entries, new in zip(self._layers[layer], (key, value), strict=True):
            entries.view(-1, self._size).index_copy_(0, self._slots, new[0].transpose(0, 1).reshape(-1, self._size))
        keys, values = (entries[first : first + texts, :, :extent] for entries in self._layers[layer])
        heads = query.shape[1]
        rows = query[0].transpose(0, 1)
        rows = rows if self._tokens is None else rows[self._tokens]
        # heads that share keys stand as rows of one head
        folded = rows.reshape(texts, tokens, heads, -1).transpose(1, 2).reshape(texts, keys.shape[1], -1, self._size)
        found = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self._mask)
        # reshaped, not viewed: kernels on a GPU return tokens outside of heads
        found = found.reshape(texts, heads, tokens, self._size).transpose(1, 2).reshape(-1, heads, self._size)
        found = found if self._in_grid is None else found[self._in_grid]
        return found.transpose(0, 1)[None]

    def within(self, window: int) -> "AtOnce":
        place = copy(self)
        place._mask = _windowed(self._mask, self._grid.extent, window, self._layers[0][0])
        return place


class InTurn:
    """Each text attends on its own, over no more slots than it has.

    Args:
        caches: of each text.
        rotations: of each token's position.
        spans: of each text.
    """

    def __init__(self, caches: Sequence[KVCache], rotations: Tensor, spans: Sequence[Span]) -> None:
        self.rotations = rotations
        like = caches[0].layers[0][0]
        masks = [_mask(Grid.of([each]), [each], like) for each in spans]
        self._texts = list(zip(caches, spans, masks, strict=True))
        self._sizes = [each.tokens for each in spans]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`; there is one batch of all texts' tokens."""
        found = []
        shared = (each.split(self._sizes, 2) for each in (query, key, value))
        for (cache, span, mask), q, k, v in zip(self._texts, *shared, strict=True):
            keys, values = cache.layers[layer]
            slots, seen = slice(span.slots.start, span.extent), slice(span.extent)
            keys[:, :, slots] = k
            values[:, :, slots] = v
            found.append(
                F.scaled_dot_product_attention(q, keys[:, :, seen], values[:, :, seen], attn_mask=mask, enable_gqa=True)
            )
        return torch.cat(found, 2)

    def within(self, window: int) -> "InTurn":
        place = copy(self)
        place._texts = [
            (cache, span, _windowed(mask, span.extent, window, cache.layers[0][0])) for cache, span, mask in self._texts
        ]
        return place
