"""Attention in a pass over several texts, each behind a length and a cache of its own: all at once, or in turn."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.arrays import Bool
from treeopt.runtime.models.attention import Place
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.model import TextRows

MOST_PADDING = 2.0
"""Texts attend at once where that is at most so many times the scores that they have themselves."""
CALL_BYTES = 2**17
"""On a CPU a call more takes as long as reading so many bytes of a layer's cache; see `benchmarks/ragged_attention.py`."""


class Span(NamedTuple):
    """Where one text's tokens stand."""

    place: int
    """Of its cache among those side by side."""
    tokens: int
    extent: int
    """Slots that the last token may see, its own included."""
    visible: Bool | None
    """bool (tokens, m): which of the last m slots each token sees beside all before them; None where each sees every slot."""


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
    lengths = [part.cache.length for part in parts]
    spans = [
        Span(cache.place, len(depth), length + start + len(depth), visible)
        for (_, depth, cache, visible, start), length in zip(parts, lengths, strict=True)
    ]
    longest = max((part.cache for part in parts), key=lambda cache: cache.capacity)
    positions = np.concatenate(
        [length + part.depth for part, length in zip(parts, lengths, strict=True)], dtype=np.int64
    )
    rotations = longest.rotations[torch.from_numpy(positions).to(longest.rotations.device)]
    if all(part.cache.whole is whole for part in parts):
        grid = Grid.of(spans)
        if _pays(grid, spans, whole.layers[0][0]):
            return AtOnce(whole, rotations, spans, grid, heads_per_key)
    return InTurn([part.cache for part in parts], rotations, spans)


class Grid(NamedTuple):
    """Texts side by side, the same number of tokens and slots for each."""

    first: int
    """Place of the first text."""
    texts: int
    tokens: int
    extent: int

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Grid":
        """Return the smallest that holds all spans."""
        places, tokens, extents, _ = zip(*spans, strict=True)
        return cls(min(places), max(places) + 1 - min(places), max(tokens), max(extents))


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
        rows = [
            each.place * heads * cache.capacity + slot
            for each in spans
            for slot in range(each.extent - each.tokens, each.extent)
        ]
        by_head = torch.tensor(rows)[:, None] + torch.arange(0, heads * cache.capacity, cache.capacity)
        self._slots = by_head.flatten().to(rotations.device)
        """Of each head of each token, where the texts, heads and slots of a layer are counted through."""
        self._in_grid, self._tokens = _places_in(grid, spans, rotations.device)
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


def _places_in(grid: Grid, spans: Sequence[Span], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the place of each token in a grid, and the token of each place, any where there is none.

    None for both where they are the same.
    """
    places: list[int] = []
    for each in spans:
        start = (each.place - grid.first) * grid.tokens
        places += range(start, start + each.tokens)
    if places == list(range(grid.texts * grid.tokens)):
        return None, None
    in_grid = torch.tensor(places)
    tokens = torch.zeros(grid.texts * grid.tokens, dtype=torch.int64)
    tokens[in_grid] = torch.arange(len(places))
    return in_grid.to(device), tokens.to(device)


def _mask(grid: Grid, spans: Sequence[Span], like: Tensor, repeats: int = 1) -> Tensor | None:
    """Return what is added to the scores, or None where each token sees every slot.

    It is (texts, 1, repeats * tokens, extent), or (texts, 1, 1, extent) where the tokens of each text see the same.
    """
    alike = all(each.visible is None for each in spans)
    if alike and all(each.extent == grid.extent for each in spans):
        return None
    hidden = np.zeros((grid.texts, 1 if alike else grid.tokens, grid.extent), np.bool_)
    for each in spans:
        rows = hidden[each.place - grid.first]
        rows[:, each.extent :] = True
        if each.visible is not None:
            np.logical_not(each.visible, out=rows[: each.tokens, each.extent - each.visible.shape[1] : each.extent])
    shape = (grid.texts, 1 if alike else repeats, *hidden.shape[1:])
    mask = torch.zeros(shape, dtype=like.dtype, device=like.device)
    mask.masked_fill_(torch.from_numpy(hidden).to(like.device)[:, None], float("-inf"))
    return mask.view(grid.texts, 1, -1, grid.extent)


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
            slots, seen = slice(span.extent - span.tokens, span.extent), slice(span.extent)
            keys[:, :, slots] = k
            values[:, :, slots] = v
            found.append(
                F.scaled_dot_product_attention(q, keys[:, :, seen], values[:, :, seen], attn_mask=mask, enable_gqa=True)
            )
        return torch.cat(found, 2)
