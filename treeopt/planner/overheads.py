"""Host overhead of a step, as a function of the tree.

    overhead_s(T) = per_step_s + per_level_s * levels + per_node_s * nodes + branching_s if T branches

The first level is drafted after a verification and not after another level, every level has its bookkeeping, every node
is tested, and if a tree branches the accepted path's cache entries are moved.  The four terms are fitted to whole steps
with different trees, by least squares relative to the steps' times.  Only `per_level_s` may be negative: on GPUs a level
takes less time within a step than by itself.

If the timed trees cannot separate two terms, all of it counts in the earlier one and the later one is 0: a chain, for
example, has one node per level, so chains alone cannot show the time per node.
"""

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.planner.curves import Curve
from treeopt.planner.resampling import Estimator
from treeopt.records.step_latency import StepLatency, TimedTree
from treeopt.trees import TokenTree, kind_of

ROUNDING = 1e-9
"""Relative to the largest entry of a matrix: smaller singular values are rounding errors."""


class Overheads(NamedTuple):
    """Seconds, each (...): any axes hold draws."""

    per_step_s: Float64
    per_level_s: Float64
    per_node_s: Float64
    branching_s: Float64


def step_overheads(latency: StepLatency, verify: Curve, draft: Curve, rule: str, estimator: Estimator) -> Overheads:
    """Return the overheads of one latency's steps under a rule: fitted to its whole steps if it has any, else the mean.

    Args:
        latency: the timed steps.
        verify: seconds of its verification passes.
        draft: seconds of its draft passes.
        rule: verification rule of the steps.
        estimator: turns timings into seconds.
    """
    timed = [
        timed_tree
        for timed_tree in latency.steps_of(rule)
        if timed_tree.tree.nodes <= verify.max_tokens
        and draft_counts(timed_tree.tree, per_block=latency.per_block).max(initial=0) <= draft.max_tokens
    ]
    if not timed:
        return mean_overhead(latency, rule, estimator)
    steps_s = estimator.medians_s(tuple(timed_tree.steps for timed_tree in timed))
    passes_s = [
        verify.at(np.array([tree.nodes]))[..., 0]
        + draft.at(draft_counts(tree, per_block=latency.per_block)).sum(axis=-1)
        for tree in (timed_tree.tree for timed_tree in timed)
    ]
    return fit_overheads(timed, steps_s - np.stack(passes_s, axis=-1))


def mean_overhead(latency: StepLatency, rule: str, estimator: Estimator) -> Overheads:
    """Return the mean overhead of a rule's steps; 0 without a draft model."""
    timing = latency.overhead_of(rule)
    overhead_s = np.zeros(()) if timing is None else estimator.medians_s((timing,))[..., 0]
    zero = np.zeros_like(overhead_s)
    return Overheads(overhead_s, zero, zero, zero)


def fit_overheads(timed: Sequence[TimedTree], overhead_s: Float64) -> Overheads:
    """Return the least-squares fit of the overheads.

    Args:
        timed: k trees with the times of their steps.
        overhead_s: (..., k), seconds of the steps without their passes; any leading axes hold draws.
    """
    trees = [timed_tree.tree for timed_tree in timed]
    features = np.array([[1.0, tree.max_depth, tree.nodes, float(kind_of(tree) == "tree")] for tree in trees])
    weights = 1 / np.array([timed_tree.steps.median_s for timed_tree in timed])
    coefficients = least_squares(features * weights[:, None], overhead_s * weights, free=(1,))
    return Overheads(*np.moveaxis(coefficients, -1, 0))


def least_squares(features: Float64, values: Float64, *, free: Collection[int] = ()) -> Float64:
    """Return (..., n): the least-squares coefficients of n features, non-negative except the free ones.

    A feature that is a linear combination of earlier ones has the coefficient 0.  The nonzero coefficients of the
    optimum are those of unconstrained least squares in their features alone.  So every subset is solved, for all draws
    at once, which for a few features is faster than an active-set method for each draw.

    Args:
        features: (k, n).
        values: (..., k); any leading axes hold draws.
        free: features whose coefficients may be negative.
    """
    tolerance = ROUNDING * np.abs(features).max()
    independent: list[int] = []
    for column in range(features.shape[1]):
        if np.linalg.matrix_rank(features[:, [*independent, column]], tol=tolerance) > len(independent):
            independent.append(column)
    bounded = [column for column in independent if column not in free]
    best = np.zeros((*values.shape[:-1], features.shape[1]))
    least = np.full(values.shape[:-1], np.inf)
    for subset in (subset for size in range(len(bounded) + 1) for subset in combinations(bounded, size)):
        columns = [column for column in independent if column in free or column in subset]
        solution = np.zeros_like(best)
        solution[..., columns] = values @ np.linalg.pinv(features[:, columns]).T
        error = np.square(values - solution @ features.T).sum(axis=-1)
        better = (solution[..., bounded] >= 0).all(axis=-1) & (error < least)
        best, least = np.where(better[..., None], solution, best), np.where(better, error, least)
    return best


def draft_counts(tree: TokenTree, *, per_block: bool = False) -> Int64:
    """Return the counts that a draft curve is read at: the width of each level, or once the number of levels."""
    return np.array([tree.max_depth]) if per_block else tree.draft_widths.astype(np.int64)
