"""From what happened at every position of a text to acceptance per depth and rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int64
from treeopt.errors import TreeoptError
from treeopt.records.acceptance import TextSums

LEAST_COUNT = 20.0
"""Depths that fewer positions reached are left out of the table."""
REJECTED = -1
"""Stands for the accepted rank where every child was rejected."""
TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptanceCounts(ArrayRecord):
    """Sums over one text: how often each depth was reached, and how much of that each rank accepted."""

    reached: Float64
    """float64 (D,), or (D, R) where every rank of the parent has sums of its own."""
    accepted: Float64
    """float64 (D, B) or (D, R, B)."""

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def from_numbers(cls, numbers: Float64, depth: int) -> "AcceptanceCounts":
        """Return the sums that `numbers` gave as one row, in shapes (D,) and (D, B)."""
        return cls(numbers[:depth], numbers[depth:].reshape(depth, -1))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All sums in one row, as a journal keeps them."""
        return (*self.reached.tolist(), *self.accepted.ravel().tolist())


def conditional_counts(expected: Float64, accepted_rank: Int64, depth: int) -> AcceptanceCounts:
    """Return the sums per depth, every position taken as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        accepted_rank: int64 (positions,), the rank accepted, `REJECTED` for none.
        depth: D.
    """
    counts = rank_conditioned_counts(expected, accepted_rank, depth, 1)
    return AcceptanceCounts(counts.reached[:, 0], counts.accepted[:, 0])


def rank_conditioned_counts(expected: Float64, accepted_rank: Int64, depth: int, parent_ranks: int) -> AcceptanceCounts:
    """Return the sums per depth and rank of the parent, every position taken as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child, and there for
    the rank that position s + d - 2 accepted, the rank of its parent.  Parents of rank R - 1 and beyond count together;
    the root has rank 0.  Summed over the parent's rank these are the sums of `conditional_counts`.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        accepted_rank: int64 (positions,), the rank accepted, `REJECTED` for none.
        depth: D.
        parent_ranks: R.

    Returns sums of shapes (D, R) and (D, R, B).
    """
    reached, accepted = np.zeros((depth, parent_ranks)), np.zeros((depth, parent_ranks, expected.shape[1]))
    ranks = np.arange(parent_ranks)
    parent_rank = np.zeros(len(expected), np.int64)  # of the node that root s came to at depth d
    reach = np.ones(len(expected))  # 1 where root s came as far as depth d
    for d in range(min(depth, len(expected))):
        by_rank = reach[:, None] * (np.minimum(parent_rank, parent_ranks - 1)[:, None] == ranks)
        reached[d] = by_rank.sum(axis=0)
        accepted[d] = by_rank.T @ expected[d:]
        parent_rank = accepted_rank[d:-1]
        reach = reach[:-1] * (parent_rank != REJECTED)
    return AcceptanceCounts(reached, accepted)


def text_sums(texts: Sequence[AcceptanceCounts]) -> TextSums:
    """Return the sums of all texts, without the depths that hardly any position reached.

    Args:
        texts: counts of shapes (D,) and (D, B).

    Raises TreeoptError when too little text was measured.
    """
    reached = np.array([text.reached for text in texts])
    accepted = np.array([text.accepted for text in texts])
    depths = int(np.cumprod(reached.sum(axis=0) >= LEAST_COUNT).sum())
    if depths == 0 or len(texts) < 2:
        raise TreeoptError("acceptance: expected two texts or more with 20 positions in all. Measure more.")
    return TextSums(reached[:, :depths], accepted[:, :depths])


def gained(sums: TextSums, gain: Float64) -> TextSums:
    """Return the sums of texts times a gain of acceptance, text by text.

    Siblings exclude each other: ranks whose gain was not measured share what the others leave, in the same proportion,
    and no more is accepted than was reached.

    Args:
        sums: of shapes (J, D) and (J, D, B).
        gain: float64 (D, B), nan where it was not measured.
    """
    known = ~np.isnan(gain)
    theirs = np.where(known, sums.accepted, 0.0)
    ours = theirs * np.where(known, gain, 0.0)
    ours *= np.minimum(1.0, sums.reached / np.maximum(ours.sum(axis=2), TINY))[:, :, None]
    left, before = (np.maximum(sums.reached - each.sum(axis=2), 0.0) for each in (ours, theirs))
    others = (sums.accepted - theirs) * (left / np.maximum(before, TINY))[:, :, None]
    return TextSums(sums.reached, ours + others)
