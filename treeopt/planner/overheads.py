"""What of a step its passes do not explain, as it grows with the tree.

    overhead_s(T) = per_step_s + per_level_s * levels + per_node_s * nodes + branching_s where T branches

The first level is drafted behind a verification and not behind another level, every level has its bookkeeping, every
node is tested, and where a tree branches the accepted path's cache entries are moved.  The four numbers are fitted to
whole steps with trees that differ in all of this, by least squares relative to the steps' times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64
from treeopt.records.step_latency import TimedTree
from treeopt.trees import TokenTree


class Overheads(NamedTuple):
    """Seconds, each of shape (...): any axes hold draws."""

    per_step_s: Float64
    per_level_s: Float64
    per_node_s: Float64
    branching_s: Float64


def branches(tree: TokenTree) -> bool:
    """Return whether a node of a tree has more than one child."""
    return tree.nodes > tree.max_depth + 1


def constant(overhead_s: Float64) -> Overheads:
    """Return the overheads of steps of which only a mean is known."""
    nothing = np.zeros_like(overhead_s)
    return Overheads(overhead_s, nothing, nothing, nothing)


def fitted(timed: Sequence[TimedTree], steps_s: Float64, verify_s: Float64, draft_s: Float64) -> Overheads:
    """Return the overheads that explain best what some steps take beside their passes.

    Args:
        timed: k trees, whose steps were timed.
        steps_s: (..., k), seconds of their steps: medians, or draws of what these may be.
        verify_s: (..., N), seconds of a pass over 1 ... N nodes.
        draft_s: (..., W), seconds of drafting a level of 1 ... W internal nodes.
    """
    passes_s = np.stack(
        [verify_s[..., each.tree.nodes - 1] + draft_s[..., each.tree.draft_widths - 1].sum(axis=-1) for each in timed],
        axis=-1,
    )
    features = np.array([[1.0, each.tree.max_depth, each.tree.nodes, float(branches(each.tree))] for each in timed])
    weights = 1 / np.array([each.steps.median_s for each in timed])
    solved = np.linalg.pinv(features * weights[:, None]) * weights  # (4, k)
    coefficients = (steps_s - passes_s) @ solved.T
    return Overheads(*np.moveaxis(coefficients, -1, 0))
