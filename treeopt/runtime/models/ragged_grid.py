"""Texts of unlike numbers of tokens and slots, laid out as a grid that one call can go over.

text:        0                 1                 …
rows:        n tokens each, the last of texts that have fewer stand for nothing
columns:     as many slots as the longest has, those that a text has not hidden by a mask
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64
from treeopt.runtime.models.model import TextRows


class Span(NamedTuple):
    """Where one text's tokens stand."""

    place: int
    """Of its cache among those side by side."""
    tokens: int
    extent: int
    """Slots that the last token may see, its own included."""
    visible: Bool | None
    """bool (tokens, m): which of the last m slots each token sees beside all before them; None where each sees every slot."""

    @classmethod
    def of(cls, part: TextRows, place: int) -> "Span":
        """Return that of a text's tokens in a pass."""
        tokens = len(part.depth)
        return cls(place, tokens, part.cache.length + part.start + tokens, part.visible)

    @property
    def slots(self) -> range:
        """Of its tokens."""
        return range(self.extent - self.tokens, self.extent)


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


def positions_of(parts: Sequence[TextRows]) -> Int64:
    """Return the position of each token in its text, one text after the other."""
    return np.concatenate([part.cache.length + part.depth for part in parts], dtype=np.int64)


def places_in(grid: Grid, spans: Sequence[Span], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
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


def mask_of(
    grid: Grid, spans: Sequence[Span], *, dtype: torch.dtype, device: torch.device, repeats: int = 1
) -> Tensor | None:
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
    mask = torch.zeros(shape, dtype=dtype, device=device)
    mask.masked_fill_(torch.from_numpy(hidden).to(device)[:, None], float("-inf"))
    return mask.view(grid.texts, 1, -1, grid.extent)
