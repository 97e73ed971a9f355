"""Acceptance per depth and rank, counted from the accepted ranks at every position of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int64
from treeopt.errors import TreeoptError
from treeopt.records.acceptance import SequenceSums

MIN_REACHED = 20.0
"""Positions that must reach a depth for the table to include it."""
REJECTED = -1
"""The accepted rank of a position where every child was rejected."""
TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptanceCounts(ArrayRecord):
    """Sums over one sequence: positions that reached each depth, and expected acceptances of each rank there."""

    reached: Float64
    """float64 (D,)."""
    accepted: Float64
    """float64 (D, B)."""

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def from_numbers(cls, numbers: Float64, depth: int) -> "AcceptanceCounts":
        """Return the counts that `numbers` flattened."""
        return cls(numbers[:depth], numbers[depth:].reshape(depth, -1))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All sums in one row, for checkpoints."""
        return (*self.reached.tolist(), *self.accepted.ravel().tolist())


def count_acceptance(expected: Float64, accepted_rank: Int64, depth: int) -> AcceptanceCounts:
    """Return the sums per depth, with every position as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        accepted_rank: int64 (positions,), the accepted rank or `REJECTED`.
        depth: D.
    """
    reached, accepted = np.zeros(depth), np.zeros((depth, expected.shape[1]))
    reach = np.ones(len(expected))  # 1 if the path from root s reaches depth d
    for d in range(min(depth, len(expected))):
        reached[d] = reach.sum()
        accepted[d] = reach @ expected[d:]
        reach = reach[:-1] * (accepted_rank[d:-1] != REJECTED)
    return AcceptanceCounts(reached, accepted)


def combine_counts(sequences: Sequence[AcceptanceCounts]) -> SequenceSums:
    """Return the sums of all sequences, without the depths that fewer than `MIN_REACHED` positions reached.

    Raises TreeoptError for fewer than two sequences or `MIN_REACHED` positions.
    """
    reached = np.array([sequence.reached for sequence in sequences])
    accepted = np.array([sequence.accepted for sequence in sequences])
    depths = int(np.cumprod(reached.sum(axis=0) >= MIN_REACHED).sum())
    if depths == 0 or len(sequences) < 2:
        raise TreeoptError("acceptance: expected two sequences or more with 20 positions in all. Measure more.")
    return SequenceSums(reached[:, :depths], accepted[:, :depths])


def scale_acceptance(sums: SequenceSums, gain: Float64) -> SequenceSums:
    """Return the sums times a gain of acceptance, sequence by sequence.

    Siblings exclude each other: ranks without a measured gain divide what the others leave in the same proportion, and the
    ranks together accept at most `reached`.

    Args:
        sums: of shapes (J, D) and (J, D, B).
        gain: float64 (D, B), nan where it was not measured.
    """
    measured = ~np.isnan(gain)
    before = np.where(measured, sums.accepted, 0.0)
    after = before * np.where(measured, gain, 0.0)
    after *= np.minimum(1.0, sums.reached / np.maximum(after.sum(axis=2), TINY))[:, :, None]
    left_before, left_after = (np.maximum(sums.reached - part.sum(axis=2), 0.0) for part in (before, after))
    others = (sums.accepted - before) * (left_after / np.maximum(left_before, TINY))[:, :, None]
    return SequenceSums(sums.reached, after + others)
