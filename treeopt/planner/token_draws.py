"""Draws of an acceptance, and of the tokens per step of any tree, within the uncertainty of the measurements.

Acceptance is drawn by sequence, so that the errors of neighbouring depths correlate as in the measured sequences.
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
    """Draws of an acceptance; the same at every operating point."""

    p: Float64
    """(draws, D, R, B); D is 1 if one row holds for every depth.  Not clipped to 0 … 1, which would shift the mean."""
    unseen: Float64 | None = None
    """As `p`, without the sequences' deviations; None if these account for all of the error."""
    dependence: ChainDependence | Dependence | None = None
    """Corrects the table; with it, the sequences' errors are those of their replay."""
    sequence_noise: Float64 | None = None
    """(draws, J): the multiple of each sequence's deviation in a draw; None without sequences."""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    """In the state after these draws, from which other draws continue on a copy."""

    @classmethod
    def of(cls, acceptance: MeasuredAcceptance, dependence: ChainDependence | Dependence | None = None) -> "TokenDraws":
        """Return the draws of one acceptance, the same at every call."""
        generator = np.random.default_rng(SEED)
        sums = acceptance.sequences
        noise = None if sums is None else draw_sequence_noise(len(sums.reached), generator)
        p, unseen = draw_acceptance(acceptance, generator, noise)
        return cls(p=p, unseen=unseen, dependence=dependence, sequence_noise=noise, generator=generator)

    def tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): expected tokens per step, from 1 to the length of the longest path.

        Cached, because operating points share most of their trees.
        """
        if tree not in self._tokens:
            self._tokens[tree] = np.clip(self._draw(tree), 1.0, 1.0 + tree.max_depth)
        return self._tokens[tree]

    def _draw(self, tree: TokenTree) -> Float64:
        by_table = _expected_tokens(self._p_by_entry, tree)
        weight = 0.0 if self.dependence is None else self.dependence.weight(tree)
        if self.dependence is None or self.sequence_noise is None or weight == 0:
            return by_table
        relative = self.sequence_noise @ self.dependence.deviations(tree)
        expected = self.dependence.table.expected_tokens(tree)
        if self._unseen_by_entry is not None:
            relative = relative + _expected_tokens(self._unseen_by_entry, tree) / expected - 1
        relative = weight * relative + (1 - weight) * (by_table / expected - 1)
        return np.asarray(self.dependence.tokens(tree) * (1 + relative))

    @cached_property
    def _p_by_entry(self) -> Float64:
        """(D, R, B, draws)."""
        return np.ascontiguousarray(np.moveaxis(self.p, 0, -1))

    @cached_property
    def _unseen_by_entry(self) -> Float64 | None:
        """(D, R, B, draws)."""
        return None if self.unseen is None else np.ascontiguousarray(np.moveaxis(self.unseen, 0, -1))

    @cached_property
    def _tokens(self) -> dict[TokenTree, Float64]:
        return {}


def _expected_tokens(p_by_entry: Float64, tree: TokenTree) -> Float64:
    """Return (draws,): expected tokens per step by drawn tables, (D, R, B, draws)."""
    depths, ranks, branching, draws = p_by_entry.shape
    reach = np.ones((tree.nodes, draws))
    for depth, level in enumerate(tree.levels[1:], start=1):
        parents, rank = tree.parents[level], tree.rank[level]
        accepted = p_by_entry[min(depth, depths) - 1][
            np.minimum(tree.rank[parents], ranks - 1), np.minimum(rank, branching - 1)
        ]
        reach[level] = reach[parents] * np.where(rank[:, None] < branching, accepted, 0.0)
    return np.asarray(reach.sum(axis=0))


def draw_sequence_noise(sequences: int, generator: np.random.Generator) -> Float64:
    """Return (draws, sequences): Student-t deviates, because the spread of few sequences is itself uncertain."""
    deviates = generator.standard_normal((DRAWS, sequences))
    scale = np.sqrt((sequences - 1) / generator.chisquare(sequences - 1, DRAWS))
    return np.asarray(deviates * scale[:, None])


def draw_acceptance(
    acceptance: MeasuredAcceptance, generator: np.random.Generator, sequence_noise: Float64 | None
) -> tuple[Float64, Float64 | None]:
    """Return (draws, D, R, B): the table plus a random sum of the sequences' deviations from it.

    Sequences that agree deviate less than independent positions would.  The missing part of the error is drawn from the
    Beta distribution of independent positions, and is returned separately as well; None if nothing is missing.
    Without sequences every entry varies independently, by its standard error; without errors not at all.
    """
    table = acceptance.table
    p = table.rows(table.max_depth or 1)
    if acceptance.sequences is not None and sequence_noise is not None:
        deviations, least = acceptance.sequences.deviations(), acceptance.sequences.min_error().reshape(p.shape)
        sum_of_deviations = np.tensordot(sequence_noise, deviations, axes=1).reshape(DRAWS, *p.shape)
        missing = np.sqrt(np.maximum(0.0, 1 - (deviations**2).sum(axis=0).reshape(p.shape) / least**2))
        if not missing.any():
            return np.asarray(p + sum_of_deviations), None
        unseen = p + missing * (_draw_beta(p, least, missing > 0, generator) - p)
        return np.asarray(unseen + sum_of_deviations), np.asarray(unseen)
    if table.standard_error is None:
        return np.broadcast_to(p, (DRAWS, *p.shape)), None
    error = table.standard_error.reshape(p.shape)
    return _draw_beta(p, error, error > 0, generator), None


def _draw_beta(p: Float64, error: Float64, selected: Bool, generator: np.random.Generator) -> Float64:
    """Return (draws, *p.shape): the selected entries drawn from their Beta distributions, the others unchanged."""
    draws = np.broadcast_to(p, (DRAWS, *p.shape)).copy()
    child = generator.spawn(1)[0]  # later draws from the generator do not depend on these
    parameters = beta_parameters(p[selected], error[selected], p.shape[-1])
    draws[:, selected] = child.beta(*parameters, size=(DRAWS, int(selected.sum())))
    return draws
