"""What an acceptance table leaves out, corrected by replaying the measured sequences.

    tokens(T) = F(T) * (1 - w + w * replayed(T) / F'(T)),   w = steps / (steps + PRIOR_STEPS)

F is the table's, F' that of a table of the same accepted ranks that are replayed.  Their quotient contains where steps
begin and how acceptance continues along a path, and little of the accepted ranks' noise.  At temperature 0, where F is
F', the replay counts alone but for `w`.  The fewer whole steps with a tree can be replayed, the more the table counts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Float64
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.engine import ChainCounts
from treeopt.records.root_ranks import RootRanks
from treeopt.trees import TokenTree, chain

PRIOR_STEPS = 25
"""Replayed steps that count as much as the table."""


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
        """Return the tokens that a step with a tree yields."""
        expected, weight = self.table.expected_tokens(tree), self.weight(tree)
        if weight == 0:
            return expected
        tokens, steps = self.accepted_ranks.replay(tree)
        replayed = tokens.sum() / steps.sum() / self._replayed_table.expected_tokens(tree)
        return float(expected * (1 - weight + weight * replayed))

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): what each sequence contributes to the relative error of the replay, a ratio of sums.

        Sequences are clusters, because neighbouring steps of one are alike (Cochran, 1977, section 6.3).
        """
        tokens, steps = self.accepted_ranks.replay(tree)
        texts, total = len(steps), tokens.sum()
        residual = tokens - steps * (total / steps.sum())
        return np.asarray(residual / total * np.sqrt(texts / (texts - 1)))

    @cached_property
    def _replayed_table(self) -> AcceptanceTable:
        return self.accepted_ranks.table(self.table.max_depth or 1, self.table.branching)


@dataclass(frozen=True)
class ChainDependence:
    """The tokens that an engine's steps yielded by draft length, and the table that is planned with.

        tokens(K) = F(K) * r(K),   r(K) = counted tokens per step / F at counted lengths, linear between them

    Beyond the largest counted length the last r holds.
    """

    table: AcceptanceTable
    chains: tuple[ChainCounts, ...]
    """Of lengths that the table has."""

    def weight(self, tree: TokenTree) -> float:
        """Return 1 for a chain that drafts at all, 0 for any other tree."""
        return float(1 < tree.nodes == tree.max_depth + 1)

    def tokens(self, tree: TokenTree) -> float:
        """Return the tokens that a step with a chain yields: counted if its length was, the table's for other trees."""
        expected = self.table.expected_tokens(tree)
        return expected * self._at(tree.max_depth, self._ratios) if self.weight(tree) else expected

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): what each sequence contributes to the relative error, a ratio of sums."""
        return np.array([self._at(tree.max_depth, text) for text in self._deviations.T])

    def _at(self, length: int, values: Float64) -> float:
        return float(np.interp(length, [each.length for each in self.chains], values))

    @cached_property
    def _ratios(self) -> Float64:
        return np.array([each.tokens_per_step / self.table.expected_tokens(chain(each.length)) for each in self.chains])

    @cached_property
    def _deviations(self) -> Float64:
        """(lengths, J)."""
        rows = []
        for each in self.chains:
            steps, tokens = np.array(each.steps), np.array(each.tokens)
            residual = tokens - steps * each.tokens_per_step
            rows.append(residual / tokens.sum() * np.sqrt(len(steps) / max(1, len(steps) - 1)))
        return np.array(rows)
