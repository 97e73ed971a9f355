"""What an acceptance table leaves out, put right by replaying the measured texts.

    tokens(T) = F(T) * replayed(T) / F'(T)

F is the table's, F' that of a table made of the same accepted ranks that are replayed: their quotient holds where steps
begin and how acceptance goes on along a path, and little of the accepted ranks' noise.  At temperature 0, where F is
F', this is the replay itself.
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

LEAST_STEPS = 100
"""Replayed steps that tell more than a table; texts shorter than a few steps hardly have any that are whole."""


@dataclass(frozen=True)
class Dependence:
    """The accepted ranks of some texts beside the table that is planned with."""

    table: AcceptanceTable
    accepted_ranks: AcceptedRanks | RootRanks

    def tells(self, tree: TokenTree) -> bool:
        """Return whether enough whole steps with a tree can be replayed to tell more than the table."""
        return int(self.accepted_ranks.replay(tree).steps.sum()) >= LEAST_STEPS

    def tokens(self, tree: TokenTree) -> float:
        """Return the tokens that a step with a tree yields: the table's where the replay does not tell more."""
        expected = self.table.expected_tokens(tree)
        if not self.tells(tree):
            return expected
        tokens, steps = self.accepted_ranks.replay(tree)
        return float(expected * (tokens.sum() / steps.sum()) / self._of_the_same.expected_tokens(tree))

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): what each text contributes to the relative error of a replay that tells, a ratio of sums.

        Texts are clusters, because neighbouring steps of one text are alike (Cochran, 1977, section 6.3).
        """
        tokens, steps = self.accepted_ranks.replay(tree)
        texts, total = len(steps), tokens.sum()
        residual = tokens - steps * (total / steps.sum())
        return np.asarray(residual / total * np.sqrt(texts / (texts - 1)))

    @cached_property
    def _of_the_same(self) -> AcceptanceTable:
        return self.accepted_ranks.table(self.table.max_depth or 1, self.table.branching)


@dataclass(frozen=True)
class ChainDependence:
    """What an engine's steps came to by draft length beside the table that is planned with.

        tokens(K) = F(K) * r(K),   r(K) = counted tokens per step / F at lengths that were counted, straight between them

    Beyond the largest counted length the last r holds.
    """

    table: AcceptanceTable
    chains: tuple[ChainCounts, ...]
    """Of lengths that the table has."""

    def tells(self, tree: TokenTree) -> bool:
        """Return whether it is a chain that drafts at all."""
        return 1 < tree.nodes == tree.max_depth + 1

    def tokens(self, tree: TokenTree) -> float:
        """Return the tokens that a step with a chain yields: counted where its length was, the table's for other trees."""
        expected = self.table.expected_tokens(tree)
        return expected * self._at(tree.max_depth, self._ratios) if self.tells(tree) else expected

    def deviations(self, tree: TokenTree) -> Float64:
        """Return (J,): what each text contributes to the relative error, a ratio of sums; texts are clusters."""
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
