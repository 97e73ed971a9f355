"""Counts of decoding steps to acceptance: how many tokens every step accepted, text by text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from treeopt.arrays import Float64
from treeopt.engines.importers.acceptance_tables import table_of_reached
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable, TextSums

MAX_GROUPS = 256
"""More texts than these are joined into as many groups of neighbours, whose sums err as independently."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Steps of one text: those in which a draft token was tried at positions 1, 2, …, and those that accepted it.

    >>> StepCounts.of_lengths({0: 40, 1: 30, 2: 30}, 3)
    StepCounts(reached=(100, 60, 30), accepted=(60, 30, 0))
    """

    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @classmethod
    def of_lengths(cls, steps: Mapping[int, int], depth: int) -> "StepCounts":
        """Return the counts of steps by how many draft tokens they accepted, all of which drafted `depth` tokens."""
        tried = min(depth, max(steps, default=0) + 1)  # nothing reached the positions behind
        survived = tuple(accumulate(steps.get(length, 0) for length in range(tried, -1, -1)))[::-1]
        return cls(survived[:-1], survived[1:])

    @classmethod
    def of_steps(cls, accepted: Sequence[int], drafted: Sequence[int]) -> "StepCounts":
        """Return the counts of steps that may each have drafted another number of tokens.

        >>> StepCounts.of_steps([2, 0, 1], [2, 2, 1])
        StepCounts(reached=(3, 1), accepted=(2, 1))
        """
        taken, tried = np.array(accepted, np.int64), np.array(drafted, np.int64)
        places = range(int(tried.max(initial=0)))
        reached = tuple(int(np.count_nonzero((taken >= place) & (tried > place))) for place in places)
        return cls(reached, tuple(int(np.count_nonzero(taken > place)) for place in places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """The table of all texts, and the sums it was made of; None for a single text."""

    table: AcceptanceTable
    texts: TextSums | None


def pooled(counts: Sequence[StepCounts], *, one_sequence: bool = True) -> Pooled:
    """Return the chain's table of all texts together, positions that no step reached left out.

    Errors are those of texts where there are several, else of one sequence, or with `one_sequence` false of
    independent positions.
    Raises InvalidValueError where no step drafted anything.
    """
    reached = _summed([each.reached for each in counts])
    accepted = _summed([each.accepted for each in counts])
    depth = int(np.count_nonzero(reached.sum(axis=0)))  # a position is reached through those before it
    if depth == 0:
        raise InvalidValueError("steps: expected at least one that drafted. Got none: has it drafted yet?")
    reached, accepted = reached[:, :depth], accepted[:, :depth]
    if len(reached) == 1:
        return Pooled(table=table_of_reached(reached[0], accepted[0], one_sequence=one_sequence), texts=None)
    texts = TextSums(reached, accepted[:, :, None])
    return Pooled(table=texts.table(), texts=texts)


def _summed(rows: Sequence[Sequence[int]]) -> Float64:
    """Return a row for every text, or for every group of neighbours, zeros behind the shorter ones."""
    groups = min(len(rows), MAX_GROUPS)
    summed = np.zeros((groups, max(map(len, rows), default=0)))
    for place, row in enumerate(rows):
        summed[place * groups // len(rows), : len(row)] += row
    return summed
