"""Acceptance counted little by little: of every prompt in random order, then again on four times as many positions."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.per_prompt import Counting
from treeopt.profiler.budget import Slice
from treeopt.records.measured_acceptance import MeasuredAcceptance

FIRST_POSITIONS = 64
"""Of each text at first."""
MOST_POSITIONS = 4096
"""Of each text at last, where models and prompts have room for them."""
GROWTH = 4
FIRST_TEXTS = 8
"""Texts whose acceptance is counted before a plan is trusted."""
SEED = 0


def position_levels(room: int) -> tuple[int, ...]:
    """Return on how many positions texts are counted, one after the other, where `room` fit.

    >>> position_levels(40), position_levels(1000)
    ((40,), (64, 256, 1000))
    """
    levels = [min(FIRST_POSITIONS, room)]
    while levels[-1] < min(room, MOST_POSITIONS):
        levels.append(min(GROWTH * levels[-1], room, MOST_POSITIONS))
    return tuple(levels)


class SlicedAcceptance:
    """The acceptance of the prompts that were counted so far.

    Args:
        countings: what counts, and the levels of positions of each, rising.
        texts: how many prompts there are; they are counted in a random order, because neighbours may be alike.
    """

    def __init__(self, countings: Sequence[tuple[Counting, Sequence[int]]], texts: int) -> None:
        self._countings = countings
        self.numbers: list[int] = np.random.default_rng(SEED).permutation(texts).tolist()
        """Of the prompts, in the order in which they are counted."""
        levels = range(max(len(levels) for _, levels in countings))
        self._left = [
            (counting, number, positions[level])
            for level, number in product(levels, self.numbers)
            for counting, positions in countings
            if level < len(positions)
        ][::-1]
        self._all = len(self._left)
        while self._left and self._left[-1][0].has_counted(*self._left[-1][1:]):  # by an interrupted run
            self._left.pop()

    @property
    def exhausted(self) -> bool:
        """Whether all prompts were counted on as many positions as there are."""
        return not self._left

    @property
    def texts(self) -> int:
        """How many texts were counted, those twice that were counted again."""
        return (self._all - len(self._left)) // len(self._countings)

    @property
    def missing(self) -> int:
        """How many texts a plan needs before it is trusted."""
        return max(0, min(FIRST_TEXTS, len(self.numbers)) - self.texts)

    def add(self, time: Slice, least: int = 1, most: int | None = None) -> None:
        """Count further texts at every context, as many as there is time for.

        Args:
            time: how long.
            least: texts that are counted however long they take.
            most: texts after which to stop; by default all.
        """
        before = len(self._left)
        while self._left:
            added = (before - len(self._left)) // len(self._countings)
            if added == most or (added >= least and time.over()):
                return
            self._next()

    def _next(self) -> None:
        counting, number, positions = self._left.pop()
        counting.count(number, positions)

    def measured(self) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance so far; counts further texts while fewer than two are long enough."""
        while True:
            try:
                return tuple(found for counting, levels in self._countings for found in counting.counted(levels))
            except TreeoptError:
                if self.exhausted:
                    raise
                self._next()
