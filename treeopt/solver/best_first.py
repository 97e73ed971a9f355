"""Best-first growth: exact for non-increasing rows, where every budget's tree is part of the next budget's tree.

A node's value is the probability that a step reaches it. With non-increasing rows no node has a larger value than its
parent or its previous sibling. So the top n nodes of depth at most d are a tree, and no tree of n nodes and depth d has a
larger value: one sorted list of nodes is the optimum for every n (docs/explanation/solver.md).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int32, Int64


def top_n(values: Float64, n: int) -> Int64:
    """Return the indices of the `n` largest values, largest first; ties keep their order."""
    indices = np.arange(len(values))
    if len(values) > n:  # partition first, because sorting all of them takes longer
        indices = np.flatnonzero(values >= np.partition(values, len(values) - n)[len(values) - n])
    return indices[np.argsort(-values[indices], kind="stable")][:n]


def expand(
    best_from: Float64, parents: Int64, rank: Int32, reach: Float64, floor: float
) -> tuple[Float64, Int64, Int64]:
    """Return upper bound, parent and rank of every child of `parents` whose upper bound exceeds `floor`.

    Args:
        best_from: float64 (R, B), the best acceptance from each rank on, below parents of rank 0 … R - 1.
        parents: int64, nodes to expand.
        rank: int32 (M,), of all nodes.
        reach: float64 (M,), probability that a step reaches each node.
        floor: smallest upper bound in a full list.
    """
    bound = reach[parents, None] * best_from[np.minimum(rank[parents], len(best_from) - 1)]
    above, child = np.nonzero(bound > floor)
    return bound[above, child], parents[above], child


def grow(
    rows: Float64, max_nodes: int, level_widths: Int32, draft_widths: Int32
) -> tuple[Int32, Int32, Float64, Float64, Int32, int]:
    """Return the top N nodes of every depth limit, sorted by upper bound.

    A node's upper bound is on the value of the node, its later siblings and all their descendants: the reach of the parent
    times the best acceptance from the node's rank on. It is at most that of the parent and of the previous sibling. With
    non-increasing rows it is the node's value.

    The top nodes of depth at most d are those of depth at most d - 1, merged with children of the deepest of them. A width
    limit cuts a level, or its parents, to the top.

    Args:
        rows: float64 (D, R, B), acceptance by depth, rank of the parent and rank.
        max_nodes: N.
        level_widths: int32 (D,), most nodes at depth 1 … D.
        draft_widths: int32 (D,), most internal nodes at depth 0 … D - 1.

    Returns:
        parent, rank, reach, upper bound (M,): nodes level by level, each level sorted by upper bound.
        order (D + 1, N): row d lists the nodes of depth at most d, sorted by upper bound, padded with -1.
        Number of nodes evaluated.
    """
    levels, ranks, _ = rows.shape
    best_from = np.maximum.accumulate(rows[:, :, ::-1], axis=2)[:, :, ::-1]
    parent, rank = np.full(1, -1, np.int32), np.zeros(1, np.int32)
    reach, bound = np.ones(1), np.ones(1)
    order = np.full((levels + 1, max_nodes), -1, np.int32)
    order[:, 0] = 0
    first, listed, evaluated = 0, order[0, :1], 1  # `first` node of the deepest level
    for d in range(levels):
        floor = float(bound[listed[-1]]) if len(listed) == max_nodes else 0.0
        parents = np.arange(first, min(len(parent), first + draft_widths[d]))
        child_bound, child_parent, child_rank = expand(best_from[d], parents, rank, reach, floor)
        evaluated += len(child_bound)
        new = top_n(child_bound, min(max_nodes, level_widths[d]))
        merged = np.argsort(-np.append(bound[listed], child_bound[new]), kind="stable")[:max_nodes]
        new = new[: np.count_nonzero(merged >= len(listed))]
        listed = np.append(listed, np.arange(len(parent), len(parent) + len(new), dtype=np.int32))[merged]
        order[d + 1, : len(listed)] = listed
        if len(new) == 0:
            order[d + 2 :] = order[d + 1]
            break
        child_parent, child_rank = child_parent[new], child_rank[new]
        accepted = rows[d, np.minimum(rank[child_parent], ranks - 1), child_rank]
        first = len(parent)
        parent, rank = np.append(parent, child_parent.astype(np.int32)), np.append(rank, child_rank.astype(np.int32))
        reach, bound = np.append(reach, reach[child_parent] * accepted), np.append(bound, child_bound[new])
    return parent, rank, reach, bound, order, evaluated


def parents_of(parent: Int32, chosen: Int32) -> list[int]:
    """Return the parents of the tree of the `chosen` nodes, in the nodes' order, given the parents of all."""
    chosen = np.sort(chosen)
    parents: list[int] = np.searchsorted(chosen, parent[chosen]).tolist()
    return [-1, *parents[1:]]


@dataclass(frozen=True, eq=False, repr=False)
class NestedTrees(ArrayRecord):
    """The result of `grow`: the tree of n nodes and depth d is the first n nodes of row d of `order`."""

    parent: Int32
    """int32 (M,), -1 for the root; parents before their children."""
    rank: Int32
    reach: Float64
    """float64 (M,): probability that a step reaches each node."""
    order: Int32
    """int32 (D + 1, N), padded with -1."""

    @property
    def expected_tokens(self) -> Float64:
        """float64 (D + 1, N + 1): the most tokens per step with depth at most d and at most n nodes."""
        levels, nodes = self.order.shape
        values = np.where(self.order >= 0, self.reach[self.order], 0.0)
        return np.concatenate([np.zeros((levels, 1)), np.cumsum(values, axis=1)], axis=1).reshape(levels, nodes + 1)

    def parents(self, nodes: int, depth: int) -> list[int]:
        """Return the parents of one tree, each before its children, siblings in rank order."""
        chosen = self.order[depth, :nodes]
        return parents_of(self.parent, chosen[chosen >= 0])

    def draft_widths(self, depth: int) -> Int32:
        """Return int32 (N + 1, D): internal nodes at each depth of the trees of one depth limit.

        A node becomes internal when its first child joins.
        """
        levels, nodes = self.order.shape
        widths = np.zeros((nodes + 1, max(0, levels - 1)), np.int32)
        joined = self.order[depth][self.order[depth] >= 0]
        first = np.flatnonzero((self.rank[joined] == 0) & (joined > 0))
        widths[first + 1, self.depth[joined[first]] - 1] = 1
        return np.cumsum(widths, axis=0, dtype=np.int32)

    @cached_property
    def depth(self) -> Int32:
        """int32 (M,): depth of every node."""
        depth = np.zeros(len(self.parent), np.int32)
        ancestor = self.parent
        while np.any(ancestor >= 0):
            depth += ancestor >= 0
            ancestor = np.where(ancestor >= 0, self.parent[ancestor], -1)
        return depth


@dataclass(frozen=True, eq=False, repr=False)
class TopNodes(NestedTrees):
    """Enough nodes of any table to contain the best trees, with an upper bound on every other node.

    Row d of `order` lists nodes of depth at most d with all ancestors and earlier siblings, padded with -1.
    """

    bound: Float64
    """float64 (M,): upper bound on the reach of the node, its later siblings and all their descendants."""
    bound_outside: Float64
    """float64 (D + 1,): upper bound on the reach of the nodes of depth at most d that row d does not list."""


def top_nodes(rows: Float64, max_nodes: int) -> TopNodes:
    """Return the nodes with the largest upper bounds, for rows (D, R, B) in any order."""
    unlimited = np.full(len(rows), max_nodes, np.int32)
    parent, rank, reach, bound, order, _ = grow(rows, max_nodes, unlimited, unlimited)
    bound_outside = np.where(order[:, -1] >= 0, bound[order[:, -1]], 0.0)
    return TopNodes(parent, rank, reach, order, bound, bound_outside)
