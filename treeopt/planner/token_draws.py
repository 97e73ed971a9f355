"""What the measured sequences leave open: draws of an acceptance, and of the tokens per step of any tree.

One draw is what the measurements allow to be true.  Acceptance is drawn sequence by sequence, so that the error of one
depth correlates with that of the next, as in the measured sequences.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from treeopt.arrays import Bool, Float64
from treeopt.planner.dependence import ChainDependence, Dependence
from treeopt.planner.resampling import DRAWS, SEED
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.proportions import beta_parameters
from treeopt.trees import TokenTree


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenDraws:
    """Draws of an acceptance, and of the tokens that any tree yields: the same under every condition."""

    p: Float64
    """(draws, D, R, B); D is 1 where one row holds for every depth.  Not cut to 0 … 1: cutting would shift the mean."""
    unseen: Float64 | None = None
    """As `p`, without what the texts' deviations tell; None where they tell all that is unknown."""
    dependence: ChainDependence | Dependence | None = None
    """What the table leaves out; with it the texts' errors are those of their replay."""
    text_noise: Float64 | None = None
    """(draws, J): how much of each text's deviation a draw has; None where no texts are known."""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    """As these draws left it: what is drawn besides goes on from there, and never moves it."""

    def tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): expected tokens per step, from the target's own token to a whole path.

        They are kept, because conditions have most of their rivals in common.
        """
        if tree not in self._tokens:
            self._tokens[tree] = np.clip(self._drawn(tree), 1.0, 1.0 + tree.max_depth)
        return self._tokens[tree]

    def _drawn(self, tree: TokenTree) -> Float64:
        by_table = _tokens(self._by_entry, tree)
        weight = 0.0 if self.dependence is None else self.dependence.weight(tree)
        if self.dependence is None or self.text_noise is None or weight == 0:
            return by_table
        relative = self.text_noise @ self.dependence.deviations(tree)
        expected = self.dependence.table.expected_tokens(tree)
        if self.unseen is not None:
            relative = relative + _tokens(self._unseen_by_entry, tree) / expected - 1
        relative = weight * relative + (1 - weight) * (by_table / expected - 1)
        return np.asarray(self.dependence.tokens(tree) * (1 + relative))

    @cached_property
    def _by_entry(self) -> Float64:
        """(D, R, B, draws)."""
        return np.ascontiguousarray(np.moveaxis(self.p, 0, -1))

    @cached_property
    def _unseen_by_entry(self) -> Float64:
        """(D, R, B, draws)."""
        assert self.unseen is not None  # asked for where it is
        return np.ascontiguousarray(np.moveaxis(self.unseen, 0, -1))

    @cached_property
    def _tokens(self) -> dict[TokenTree, Float64]:
        return {}


def _tokens(p_by_entry: Float64, tree: TokenTree) -> Float64:
    """Return (draws,): expected tokens per step under drawn tables, (D, R, B, draws)."""
    depths, ranks, branching, draws = p_by_entry.shape
    reach = np.ones((tree.nodes, draws))
    for depth, level in enumerate(tree.levels[1:], start=1):
        parents, rank = tree.parents[level], tree.rank[level]
        accepted = p_by_entry[min(depth, depths) - 1][
            np.minimum(tree.rank[parents], ranks - 1), np.minimum(rank, branching - 1)
        ]
        reach[level] = reach[parents] * np.where(rank[:, None] < branching, accepted, 0.0)
    return np.asarray(reach.sum(axis=0))


def draw_tokens(acceptance: MeasuredAcceptance, dependence: ChainDependence | Dependence | None = None) -> TokenDraws:
    """Return the draws of one acceptance, the same at every call."""
    generator = np.random.default_rng(SEED)
    noise = None if acceptance.texts is None else draw_text_noise(len(acceptance.texts.reached), generator)
    p, unseen = draw_acceptance(acceptance, generator, noise)
    return TokenDraws(p=p, unseen=unseen, dependence=dependence, text_noise=noise, generator=generator)


def draw_text_noise(texts: int, generator: np.random.Generator) -> Float64:
    """Return (draws, texts): normal noise, how much of each text's deviation a draw has.

    Sums over few texts vary more than their own spread tells; the draws are widened as Student's t distribution is.
    """
    noise = generator.standard_normal((DRAWS, texts))
    wider = np.sqrt((texts - 1) / generator.chisquare(texts - 1, DRAWS))
    return np.asarray(noise * wider[:, None])


def draw_acceptance(
    acceptance: MeasuredAcceptance, generator: np.random.Generator, text_noise: Float64 | None
) -> tuple[Float64, Float64 | None]:
    """Return (draws, D, R, B), each draw the table and a random sum of the texts' deviations from it.

    Texts that agree deviate less than independent positions would: what is missing to their error is drawn from the Beta
    distribution of the latter, and returned by itself too; None where nothing is missing.
    Without texts every entry varies by itself, by its standard error; without errors not at all.
    """
    table, p = acceptance.table, _rows(acceptance)
    if acceptance.texts is not None and text_noise is not None:
        deviations, least = acceptance.texts.deviations(), acceptance.texts.least_error().reshape(p.shape)
        moved = np.tensordot(text_noise, deviations, axes=1).reshape(DRAWS, *p.shape)
        missing = np.sqrt(np.maximum(0.0, 1 - (deviations**2).sum(axis=0).reshape(p.shape) / least**2))
        if not missing.any():
            return np.asarray(p + moved), None
        unseen = p + missing * (_draw_beta(p, least, missing > 0, generator) - p)
        return np.asarray(unseen + moved), np.asarray(unseen)
    if table.standard_error is None:
        return np.broadcast_to(p, (DRAWS, *p.shape)), None
    error = table.standard_error.reshape(p.shape)
    return _draw_beta(p, error, error > 0, generator), None


def _draw_beta(p: Float64, error: Float64, wanted: Bool, generator: np.random.Generator) -> Float64:
    """Return (draws, *p.shape): the wanted entries drawn from their Beta distributions, the others as they are."""
    drawn = np.broadcast_to(p, (DRAWS, *p.shape)).copy()
    own = generator.spawn(1)[0]  # so that what is drawn after these does not depend on them
    drawn[:, wanted] = own.beta(
        *beta_parameters(p[wanted], error[wanted], p.shape[-1]), size=(DRAWS, int(wanted.sum()))
    )
    return drawn


def _rows(acceptance: MeasuredAcceptance) -> Float64:
    """Return the table as (D, R, B)."""
    table = acceptance.table
    return table.rows(table.max_depth or 1)
