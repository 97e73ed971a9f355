"""What of a step its passes do not explain, as it grows with the tree.

    overhead_s(T) = per_step_s + per_level_s * levels + per_node_s * nodes + branching_s where T branches

The first level is drafted behind a verification and not behind another level, every level has its bookkeeping, every
node is tested, and where a tree branches the accepted path's cache entries are moved.  The four numbers are fitted to
whole steps with trees that differ in all of this, by least squares relative to the steps' times.  Only `per_level_s` may
be negative: on GPUs a level takes less within a step than timed by itself.
What the timed trees cannot tell apart is counted in the earlier term, so that the later one is 0: a chain, for example,
has a node for every level, and chains alone tell nothing of what a node costs.
"""

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64
from treeopt.records.step_latency import TimedTree
from treeopt.trees import kind_of

ROUNDING = 1e-9
"""Relative to the largest entry of a matrix: singular values below are rounding errors."""


class Overheads(NamedTuple):
    """Seconds, each of shape (...): any axes hold draws."""

    per_step_s: Float64
    per_level_s: Float64
    per_node_s: Float64
    branching_s: Float64


def constant(overhead_s: Float64) -> Overheads:
    """Return the overheads of steps of which only a mean is known."""
    nothing = np.zeros_like(overhead_s)
    return Overheads(overhead_s, nothing, nothing, nothing)


def fitted(timed: Sequence[TimedTree], rest_s: Float64) -> Overheads:
    """Return the overheads that explain best what some steps take beside their passes.

    Args:
        timed: k trees, whose steps were timed.
        rest_s: (..., k), seconds of their steps without the passes: of medians, or of draws of what these may be.
    """
    features = np.array(
        [[1.0, each.tree.max_depth, each.tree.nodes, float(kind_of(each.tree) == "tree")] for each in timed]
    )
    weights = 1 / np.array([each.steps.median_s for each in timed])
    coefficients = least_squares(features * weights[:, None], rest_s * weights, free=(1,))
    return Overheads(*np.moveaxis(coefficients, -1, 0))


def least_squares(features: Float64, values: Float64, *, free: Collection[int] = ()) -> Float64:
    """Return (..., n): the least-squares coefficients of n features, none below 0 but the free ones.

    A feature that is a combination of those before it has the coefficient 0.  At the optimum, the coefficients that are
    not 0 are those of unconstrained least squares in their features alone.  So every subset is solved for, of all draws
    at once, which for a few features is faster than an active-set method for each draw.

    Args:
        features: (k, n).
        values: (..., k); any leading axes hold draws.
        free: features whose coefficients may be negative.
    """
    separate: list[int] = []
    for column in range(features.shape[1]):
        if np.linalg.matrix_rank(features[:, [*separate, column]], tol=ROUNDING * np.abs(features).max()) > len(
            separate
        ):
            separate.append(column)
    bounded = [column for column in separate if column not in free]
    best = np.zeros((*values.shape[:-1], features.shape[1]))
    least = np.full(values.shape[:-1], np.inf)
    for chosen in (each for size in range(len(bounded) + 1) for each in combinations(bounded, size)):
        columns = [column for column in separate if column in free or column in chosen]
        solved = np.zeros_like(best)
        solved[..., columns] = values @ np.linalg.pinv(features[:, columns]).T
        error = np.square(values - solved @ features.T).sum(axis=-1)
        better = (solved[..., bounded] >= 0).all(axis=-1) & (error < least)
        best, least = np.where(better[..., None], solved, best), np.where(better, error, least)
    return best
