"""Sequences of different numbers of tokens and slots, padded to a grid that one call goes over.

sequence:    0                 1                 …
rows:        n tokens each; those of sequences that have fewer are padding
columns:     as many slots as the longest has; those that a sequence has not are hidden by a mask
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64
from treeopt.runtime.models.model import Feed, Output, Outputs, concatenate_outputs


class Span(NamedTuple):
    """Where one sequence's tokens stand."""

    place: int
    """Of its cache among those side by side."""
    tokens: int
    extent: int
    """Slots that the last token may see, its own included."""
    visible: Bool | None
    """bool (tokens, m): which of the last m slots each token sees beside all before them; None where each sees all."""

    @classmethod
    def of(cls, feed: Feed, place: int) -> "Span":
        """Return that of a sequence's tokens in a pass."""
        nodes = feed.nodes
        extent = feed.cache.length + nodes.start + nodes.rows
        return cls(place, nodes.rows, extent, None if nodes.sees_all else nodes.visible)

    @property
    def slots(self) -> range:
        """Of its tokens."""
        return range(self.extent - self.tokens, self.extent)


class Grid(NamedTuple):
    """Sequences side by side, with the same number of tokens and slots for each."""

    first: int
    """Place of the first sequence."""
    sequences: int
    tokens: int
    extent: int

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Grid":
        """Return the smallest that holds all spans."""
        places, tokens, extents, _ = zip(*spans, strict=True)
        return cls(min(places), max(places) + 1 - min(places), max(tokens), max(extents))


def positions_of(feeds: Sequence[Feed]) -> Int64:
    """Return the position of each token in its text, one sequence after the other."""
    return np.concatenate([feed.cache.length + feed.nodes.depth for feed in feeds], dtype=np.int64)


def places_in(grid: Grid, spans: Sequence[Span], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the place of each token in a grid, and the token of each place, any for padding.

    None for both where they are the same.
    """
    places: list[int] = []
    for each in spans:
        start = (each.place - grid.first) * grid.tokens
        places += range(start, start + each.tokens)
    if places == list(range(grid.sequences * grid.tokens)):
        return None, None
    in_grid = torch.tensor(places)
    tokens = torch.zeros(grid.sequences * grid.tokens, dtype=torch.int64)
    tokens[in_grid] = torch.arange(len(places))
    return in_grid.to(device), tokens.to(device)


def mask_of(grid: Grid, spans: Sequence[Span], *, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return what is added to the scores, or None where each token sees every slot.

    It is (sequences, 1, tokens, extent), or (sequences, 1, 1, extent) where the tokens of each see the same.
    """
    alike = all(each.visible is None for each in spans)
    if alike and all(each.extent == grid.extent for each in spans):
        return None
    hidden = np.zeros((grid.sequences, 1 if alike else grid.tokens, grid.extent), np.bool_)
    for each in spans:
        rows = hidden[each.place - grid.first]
        rows[:, each.extent :] = True
        if each.visible is not None:
            np.logical_not(each.visible, out=rows[: each.tokens, each.extent - each.visible.shape[1] : each.extent])
    on_device = torch.from_numpy(hidden).to(device)[:, None]
    return torch.zeros(on_device.shape, dtype=dtype, device=device).masked_fill_(on_device, float("-inf"))


def last_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the last row of every sequence in a packed tensor (all rows, …), as (sequences, …)."""
    if rows.shape[0] == len(sizes):
        return rows
    if len(sizes) == 1:
        return rows[-1:]
    ends = np.cumsum(sizes) - 1
    return rows[torch.from_numpy(ends).to(rows.device)]


def last_outputs(outputs: Outputs) -> Outputs:
    """Return the outputs of the last token of every sequence."""
    sizes = outputs.sizes
    if all(size == 1 for size in sizes):
        return outputs
    return Outputs(outputs.whole.mapped(lambda rows: last_rows(rows, sizes)), [1] * len(sizes))


def run_by_memory(
    feeds: Sequence[Feed], memory: Callable[[Feed], Hashable], run: Callable[[Sequence[Feed]], Outputs]
) -> Outputs:
    """Return the outputs of sequences, from one pass over those whose caches lie in the same memory.

    Args:
        feeds: of each sequence.
        memory: what is equal where caches lie in the same memory.
        run: the pass over sequences in one memory.
    """
    memories = [memory(feed) for feed in feeds]
    if all(each == memories[0] for each in memories):
        return run(feeds)
    by_memory: dict[Hashable, list[int]] = {}
    for number, each in enumerate(memories):
        by_memory.setdefault(each, []).append(number)
    found: dict[int, Output] = {}
    for numbers in by_memory.values():
        outputs = run([feeds[number] for number in numbers])
        found.update(zip(numbers, outputs, strict=True))
    ordered = [found[number] for number in range(len(feeds))]
    return concatenate_outputs([Outputs(each, [each.logits.shape[0]]) for each in ordered])
