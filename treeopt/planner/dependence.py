"""Corrections for what an acceptance table leaves out: the dependence between positions.

    tokens(T) = F(T) * (1 - w + w * replayed(T) / F'(T)),   w = steps / (steps + PRIOR_STEPS)

F is the table's, F' that of a table counted from the accepted ranks that are replayed.  replayed(T) / F'(T) depends on
where steps begin and how acceptance continues along a path, and little on the noise of the accepted ranks.  At
temperature 0, where F = F', the prediction is the replay's except for `w`.  The fewer whole steps with a tree can be
replayed, the more the table counts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Float64
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import AcceptedRanks, RootRanks
from treeopt.records.engine import ChainCounts
from treeopt.trees import TokenTree, chain

PRIOR_STEPS = 25
"""Replayed steps that count as much as the table."""
PRIOR_POSITIONS = 25
"""Positions below parents of one rank that count as much as the row of all parents."""
PARENT_RANKS = 2
"""Rows at each depth: below first children, and below all others."""


@dataclass(frozen=True)
class Dependence:
    """The accepted ranks of some sequences, and the table that is planned with."""

    table: AcceptanceTable
    accepted_ranks: AcceptedRanks | RootRanks

    def weight(self, tree: TokenTree) -> float:
        """Return the weight of the replay, from 0 to 1."""
        steps = int(self.accepted_ranks.replay(tree).steps.sum())
        return steps / (steps + PRIOR_STEPS)

    def tokens(self, tree: TokenTree) -> float:
        """Return the corrected tokens per step."""
        expected, weight = self.table.expected_tokens(tree), self.weight(tree)
        if weight == 0:
            return expected
        ratio = self.accepted_ranks.replay(tree).tokens_per_step / self._replayed_table.expected_tokens(tree)
        return float(expected * (1 - weight + weight * ratio))

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): the contribution of each sequence to the relative error of the replay, a ratio of sums.

        Sequences are clusters, because neighbouring steps of one are correlated (Cochran, 1977, section 6.3).
        """
        tokens, steps = self.accepted_ranks.replay(tree)
        sequences, total = len(steps), tokens.sum()
        residual = tokens - steps * (total / steps.sum())
        return np.asarray(residual / total * np.sqrt(sequences / (sequences - 1)))

    @cached_property
    def _replayed_table(self) -> AcceptanceTable:
        return self.accepted_ranks.table(self.table.max_depth or 1, self.table.branching)


@dataclass(frozen=True)
class ChainDependence:
    """The tokens of an engine's steps by draft length, and the table that is planned with.

        tokens(K) = F(K) * r(K),   r(K) = counted tokens per step / F at counted lengths, linear between them

    Beyond the largest counted length r is constant.
    """

    table: AcceptanceTable
    chains: tuple[ChainCounts, ...]
    """Of lengths within the table's depth."""

    def weight(self, tree: TokenTree) -> float:
        """Return 1 for a chain with draft tokens, 0 for any other tree."""
        return float(1 < tree.nodes == tree.max_depth + 1)

    def tokens(self, tree: TokenTree) -> float:
        """Return the corrected tokens per step of a chain, and the table's of any other tree."""
        expected = self.table.expected_tokens(tree)
        return expected * self._interpolate(tree.max_depth, self._ratios) if self.weight(tree) else expected

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): the contribution of each sequence to the relative error, a ratio of sums."""
        return np.array([self._interpolate(tree.max_depth, sequence) for sequence in self._deviations.T])

    def _interpolate(self, length: int, values: Float64) -> float:
        return float(np.interp(length, [counts.length for counts in self.chains], values))

    @cached_property
    def _ratios(self) -> Float64:
        expected = [self.table.expected_tokens(chain(counts.length)) for counts in self.chains]
        return np.array([counts.tokens_per_step for counts in self.chains]) / expected

    @cached_property
    def _deviations(self) -> Float64:
        """(lengths, J)."""
        rows = []
        for counts in self.chains:
            steps, tokens = np.array(counts.steps), np.array(counts.tokens)
            residual = tokens - steps * counts.tokens_per_step
            rows.append(residual / tokens.sum() * np.sqrt(len(steps) / max(1, len(steps) - 1)))
        return np.array(rows)


def condition_on_parent(table: AcceptanceTable, root_ranks: RootRanks) -> AcceptanceTable:
    """Return a table with rows by the parent's rank, for a drafter whose children are the same below all parents of a depth.

    Such children predict what follows the first ones, and are accepted less often below others. Rows with few positions
    move towards the table's.

    Args:
        table: with one row at each depth.
        root_ranks: the accepted ranks of the same sequences.
    """
    rows = table.rows(table.max_depth or 1)
    counted = root_ranks.table(len(rows), table.branching, parent_ranks=PARENT_RANKS)
    assert counted.counts is not None  # RootRanks counts
    weight = (counted.counts / (counted.counts + PRIOR_POSITIONS))[..., None]
    p = weight * counted.p + (1 - weight) * rows
    return AcceptanceTable(p, counts=counted.counts + PRIOR_POSITIONS)
