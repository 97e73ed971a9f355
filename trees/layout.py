"""Tree layout and what else the diagrams share: branches, paths, drawing order, percentages."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from treeopt.arrays import Float64, Int32


class Drawable(Protocol):
    """The part of `TokenTree` that diagrams read; that class imports them to draw itself in notebooks."""

    @property
    def nodes(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def parents(self) -> Int32: ...
    @property
    def depth(self) -> Int32: ...
    @property
    def rank(self) -> Int32: ...
    @property
    def levels(self) -> tuple[slice, ...]: ...
    @property
    def level_widths(self) -> Int32: ...


def node_positions(parents: Int32) -> Float64:
    """Return the position of each node within its level, float64 (n,) from 0 on, without crossing branches.

    Siblings are in rank order, a parent is above the middle of its children, and neighbours on a level are at least 1 apart
    (after Reingold and Tilford, 1981).
    """
    x = np.zeros(len(parents))  # relative to the parent, until the last loop
    first: list[int] = np.searchsorted(parents, np.arange(len(parents) + 1), side="left").tolist()
    # The leftmost and rightmost x of every level of a subtree, relative to its root.
    left: dict[int, Float64] = {}
    right: dict[int, Float64] = {}
    for node in range(len(parents) - 1, -1, -1):
        outline_left = outline_right = np.zeros(0)
        children = range(first[node], first[node + 1])
        for child in children:
            child_left, child_right = left.pop(child), right.pop(child)
            shared = min(len(outline_right), len(child_left))
            x[child] = np.max(outline_right[:shared] - child_left[:shared]) + 1 if shared else 0
            outline_left = np.append(outline_left, child_left[shared:] + x[child])
            outline_right = np.append(child_right + x[child], outline_right[len(child_right) :])
        middle = x[children[-1]] / 2 if children else 0.0
        x[children.start : children.stop] -= middle
        left[node], right[node] = np.append(0, outline_left - middle), np.append(0, outline_right - middle)
    for node in range(1, len(parents)):
        x[node] += x[parents[node]]
    return np.asarray(x - x.min())


def branch_curves(points: Float64, parents: Int32, *, sideways: bool = False) -> Float64:
    """Return cubic Bézier curves from every parent to its child, float64 (n - 1, 4, 2): start, two controls, end.

    Curves leave and arrive perpendicular to the levels, so none cross.

    Args:
        points: float64 (n, 2), x and y of every node.
        parents: int32 (n,) in level order.
        sideways: whether the levels are columns instead of rows.
    """
    starts, ends = points[parents[1:]], points[1:]
    curves = np.stack([starts, starts, ends, ends], axis=1)
    along = 0 if sideways else 1
    curves[:, 1:3, along] = (starts[:, along] + ends[:, along])[:, None] / 2
    return curves


def rank_paths(tree: Drawable) -> list[tuple[int, ...]]:
    """Return the ranks on the path from the root to every node; `()` for the root."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents[1:].tolist(), tree.rank[1:].tolist(), strict=True):
        paths.append((*paths[parent], rank))
    return paths


def sort_by_reach(tree: Drawable, reach: Float64 | None) -> npt.NDArray[np.intp]:
    """Return the nodes by decreasing reach, each after its parent and earlier siblings; in level order without `reach`."""
    if reach is None:
        return np.arange(tree.nodes)
    capped = reach.copy()
    for node in range(1, tree.nodes):
        sibling = capped[node - 1] if tree.rank[node] else 1.0
        capped[node] = min(capped[node], capped[tree.parents[node]], sibling)
    return np.argsort(-capped, kind="stable")


def format_percent(probability: float) -> str:
    """Return a percentage in at most three characters, with at most two significant digits below 10."""
    value = 100 * probability
    if 0 < value < 0.05:
        return "<.1"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
