"""Attention in a pass: where the keys and values of its tokens are written, and which slots each token sees."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.grid import Grid, Span, mask_of, places_in, positions_of
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.model import Feed
from treeopt.runtime.models.nodes import hide_before_window

BLOCK_ROWS = 512
"""Tokens of a long text that attend at a time where a mask is needed, because it grows with their number."""
MOST_PADDING = 2.0
"""Sequences attend at once where that is at most so many times the scores that they have themselves."""
CALL_BYTES = 2**17
"""On a CPU a call more takes as long as reading so many bytes of a layer's cache; measured on one core of an AMD EPYC."""


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


def place_of(feeds: Sequence[Feed]) -> Place:
    """Return where the tokens of a pass stand, one sequence after the other.

    What is committed stays where it is. Sequences side by side attend at once, over as many slots of each as the longest
    has, of which a mask hides those that are not there; where reading these takes longer than a call for each sequence,
    or their caches lie apart, they attend in turn.
    """
    if len(feeds) == 1:
        return OneSequence.of(feeds[0])
    store = feeds[0].cache.store
    if all(feed.cache.store is store for feed in feeds):
        spans = [Span.of(feed, feed.cache.place) for feed in feeds]
        grid = Grid.of(spans)
        if _pays(grid, spans, store.layers[0][0]):
            return SideBySide.of(store, feeds, spans, grid)
    return InTurn([OneSequence.of(feed) for feed in feeds])


class OneSequence(NamedTuple):
    """The tokens of one sequence."""

    cache: KVCache
    rotations: Tensor
    """Of each token's position."""
    slots: slice
    """Where keys and values are written."""
    mask: Tensor | None = None
    """Of the slots from `first` on."""
    causal: bool = False
    """Whether each token sees those before it, and no other."""
    first: int = 0
    """First slot that is seen."""
    window: int | None = None
    """Sliding window of a causal pass, in tokens."""

    @classmethod
    def of(cls, feed: Feed) -> "OneSequence":
        """Return where the tokens of a feed stand."""
        cache, nodes = feed.cache, feed.nodes
        first = cache.length + nodes.start
        slots = slice(first, first + nodes.rows)
        keys = cache.layers[0][0]
        if nodes.is_chain and nodes.start == 0 and (first == 0 or nodes.rows > BLOCK_ROWS):
            return cls(cache, cache.rotations[slots], slots, causal=nodes.rows > 1)
        mask = nodes.mask_after(cache.length, dtype=keys.dtype, device=keys.device)
        return cls(cache, cache.rotations[cache.length + nodes.depth_on(keys.device)], slots, mask)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values; arguments as for `attend`."""
        keys, values = self.cache.layers[layer]
        keys[:, :, self.slots] = key
        values[:, :, self.slots] = value

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.write(layer, key, value)
        keys, values = (entries[:, :, self.first : self.slots.stop] for entries in self.cache.layers[layer])
        if self.causal:
            return attend_causally(query, keys, values, self.window)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)

    def within(self, window: int) -> "OneSequence":
        extent = self.slots.stop
        if extent <= window:
            return self
        if self.causal:
            return self._replace(window=window)
        if self.mask is None:
            return self._replace(first=extent - window)
        first = max(0, self.cache.length + 1 - window)
        return self._replace(first=first, mask=hide_before_window(self.mask[:, first:], window))


class InTurn:
    """Each sequence attends on its own, over no more slots than it has."""

    def __init__(self, places: Sequence[OneSequence]) -> None:
        self.rotations = torch.cat([place.rotations for place in places])
        self._places = places
        self._sizes = [place.slots.stop - place.slots.start for place in places]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`; there is one batch of all sequences' tokens."""
        parts = zip(self._places, *(each.split(self._sizes, 2) for each in (query, key, value)), strict=True)
        return torch.cat([place.attend(layer, *part) for place, *part in parts], 2)

    def within(self, window: int) -> "InTurn":
        return InTurn([place.within(window) for place in self._places])


class SideBySide:
    """Sequences whose caches lie side by side attend in one call over a grid.

    Args:
        store: in which their caches lie.
        rotations: of each token's position.
        grid: that holds all tokens.
        slots: int64 (tokens * key_value_heads,), from `slots_by_head`.
        mask: (sequences, 1, n or 1, extent), or None where each token sees every slot.
        in_grid: place of each token in the grid; None where they are the same.
        token_at: token of each place in the grid; None where they are the same.
    """

    def __init__(
        self,
        store: KVStore,
        rotations: Tensor,
        grid: Grid,
        *,
        slots: Tensor,
        mask: Tensor | None,
        in_grid: Tensor | None = None,
        token_at: Tensor | None = None,
    ) -> None:
        self.rotations = rotations
        self._layers = store.layers
        self._size = store.layers[0][0].shape[3]
        self._grid, self._slots, self._mask, self._in_grid, self._token_at = grid, slots, mask, in_grid, token_at

    @classmethod
    def of(cls, store: KVStore, feeds: Sequence[Feed], spans: Sequence[Span], grid: Grid) -> "SideBySide":
        """Return where the tokens of feeds stand."""
        keys = store.layers[0][0]
        sequence = torch.tensor([span.place for span in spans for _ in span.slots])
        slot = torch.tensor([slot for span in spans for slot in span.slots])
        in_grid, token_at = places_in(grid, spans, keys.device)
        return cls(
            store,
            store.rotations[torch.from_numpy(positions_of(feeds)).to(keys.device)],
            grid,
            slots=slots_by_head(store, sequence, slot).to(keys.device),
            mask=mask_of(grid, spans, dtype=keys.dtype, device=keys.device),
            in_grid=in_grid,
            token_at=token_at,
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`; there is one batch of all sequences' tokens."""
        first, sequences, tokens, extent = self._grid
        for entries, new in zip(self._layers[layer], (key, value), strict=True):
            entries.view(-1, self._size).index_copy_(0, self._slots, new[0].transpose(0, 1).reshape(-1, self._size))
        keys, values = (entries[first : first + sequences, :, :extent] for entries in self._layers[layer])
        heads = query.shape[1]
        rows = query[0].transpose(0, 1)
        rows = rows if self._token_at is None else rows[self._token_at]
        # heads that share keys stand as rows of one head, so that keys are read once for all of them
        folded = rows.reshape(sequences, tokens, heads, -1).transpose(1, 2)
        folded = folded.reshape(sequences, keys.shape[1], -1, self._size)
        if self._mask is not None and self._mask.shape[2] not in (1, folded.shape[2]):  # in the first layer
            self._mask = self._mask.repeat(1, 1, heads // keys.shape[1], 1)
        found = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self._mask)
        # reshaped, not viewed: kernels on a GPU return tokens outside of heads
        found = found.reshape(sequences, heads, tokens, self._size).transpose(1, 2).reshape(-1, heads, self._size)
        found = found if self._in_grid is None else found[self._in_grid]
        return found.transpose(0, 1)[None]

    def within(self, window: int) -> "SideBySide":
        extent = self._grid.extent
        if extent <= window:
            return self
        place = copy(self)
        mask = self.rotations.new_zeros((1, 1, 1, extent), dtype=self._layers[0][0].dtype)
        place._mask = hide_before_window(mask if self._mask is None else self._mask, window)
        return place


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


def slots_by_head(store: KVStore, sequence: Tensor, slot: Tensor) -> Tensor:
    """Return where each head of each token is written, int64 (tokens * heads,), in a layer's entries as rows of one head.

    Args:
        store: in which the sequences lie.
        sequence: int64 (tokens,), place of each token's sequence.
        slot: int64 (tokens,).
    """
    _, heads, slots, _ = store.layers[0][0].shape
    by_head = torch.arange(0, heads * slots, slots, device=slot.device)
    return ((sequence * (heads * slots) + slot)[:, None] + by_head).flatten()


def attend_causally(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Return what the last n tokens of a text attend to: each itself and those before it, `window` tokens at most.

    Args:
        query: (batch, heads, n, head_size).
        keys: (batch, key_value_heads, m, head_size), of the whole text.
        values: as `keys`.
        window: in tokens; None if every token before may be seen.
    """
    count, length = query.shape[2], keys.shape[2]
    if count == length and (window is None or count <= window):
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    positions = torch.arange(length, device=query.device)
    before, blocks = length - count, []
    for start in range(0, count, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, count)
        first = 0 if window is None else max(0, before + start + 1 - window)
        rows, columns = slice(before + start, before + end), slice(first, before + end)
        visible = positions[columns] <= positions[rows, None]
        if window is not None:
            visible &= positions[columns] > positions[rows, None] - window
        blocks.append(
            F.scaled_dot_product_attention(
                query[:, :, start:end], keys[:, :, columns], values[:, :, columns], attn_mask=visible, enable_gqa=True
            )
        )
    return torch.cat(blocks, 2)


def _pays(grid: Grid, spans: Sequence[Span], keys: Tensor) -> bool:
    """Return whether one call over a grid is quicker than one for each span.

    Args:
        grid: that holds all spans.
        spans: of each sequence.
        keys: (sequences, heads, slots, head_size) of a layer; its values are as large.
    """
    if grid.sequences * grid.tokens * grid.extent > MOST_PADDING * sum(each.tokens * each.extent for each in spans):
        return False
    hidden = grid.sequences * grid.extent - sum(each.extent for each in spans)
    slot_bytes = 2 * keys.shape[1] * keys.shape[3] * keys.element_size()
    return keys.device.type != "cpu" or hidden * slot_bytes <= CALL_BYTES * (len(spans) - 1)
