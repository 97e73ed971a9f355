"""Best-first growth: exact for rows that never rise, and then every budget's tree lies inside the next one's.

Weigh every node by the probability that a step reaches it.  Where rows never rise, no node weighs more than its parent
or the sibling before it.  So the n heaviest nodes of depth at most d form a tree, and no tree of n nodes and depth d
weighs more: the optimum for every n at once is one list of nodes in order of weight (docs/solver.md).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int32, Int64


def heaviest(weight: Float64, most: int) -> Int64:
    """Return the places of the `most` largest weights, heaviest first, ties in the order given."""
    places = np.arange(len(weight))
    if len(weight) > most:  # sorting what cannot be taken would be most of the time
        places = np.flatnonzero(weight >= np.partition(weight, len(weight) - most)[len(weight) - most])
    return places[np.argsort(-weight[places], kind="stable")][:most]


def children(hopes: Float64, parents: Int64, rank: Int32, reach: Float64, floor: float) -> tuple[Float64, Int64, Int64]:
    """Return hope, parent and rank of every child of `parents` whose hope is more than `floor`.

    Args:
        hopes: float64 (R, B), the best acceptance of each rank or any behind it, below parents of rank 0 … R - 1.
        parents: int64, which nodes.
        rank: of every node so far.
        reach: probability that a step reaches each of them.
        floor: what a child's hope, the most that it or any node behind it weighs, has to exceed.
    """
    hope = reach[parents, None] * hopes[np.minimum(rank[parents], len(hopes) - 1)]
    above, child = np.nonzero(hope > floor)
    return hope[above, child], parents[above], child


def grow(
    rows: Float64, max_nodes: int, level_widths: Int32, draft_widths: Int32
) -> tuple[Int32, Int32, Float64, Float64, Int32, int]:
    """Return the N most hopeful nodes of every depth limit, in order.

    A node's hope is the most that it, a later sibling or anything below them can weigh: reach of the parent times the
    best acceptance from its rank on.  No node has more hope than its parent or the sibling before it.  Where rows
    never rise, hope is reach.

    Level by level: the most hopeful nodes of depth at most d are those of depth at most d - 1 and the children of the
    deepest of them, merged.  A width limit cuts a level, or its parents, to the most hopeful.

    Args:
        rows: float64 (D, R, B).
        max_nodes: N.
        level_widths: int32 (D,), most nodes at depth 1 … D.
        draft_widths: int32 (D,), most internal nodes at depth 0 … D - 1.

    Returns:
        parent, rank, reach, hope (M,): nodes level by level, each level most hopeful first.
        order (D + 1, N): row d lists the nodes of depth at most d, most hopeful first; -1 behind the last.
        Nodes weighed.
    """
    levels, ranks, _ = rows.shape
    hopes = np.maximum.accumulate(rows[:, :, ::-1], axis=2)[:, :, ::-1]
    parent, rank = np.full(1, -1, np.int32), np.zeros(1, np.int32)
    reach, hope = np.ones(1), np.ones(1)
    order = np.full((levels + 1, max_nodes), -1, np.int32)
    order[:, 0] = 0
    above, listed, weighed = 0, order[0, :1], 1  # the deepest level begins at `above`
    for d in range(levels):
        floor = float(hope[listed[-1]]) if len(listed) == max_nodes else 0.0
        parents = np.arange(above, min(len(parent), above + draft_widths[d]))
        its_hope, its_parent, its_rank = children(hopes[d], parents, rank, reach, floor)
        weighed += len(its_hope)
        new = heaviest(its_hope, min(max_nodes, level_widths[d]))
        merged = np.argsort(-np.append(hope[listed], its_hope[new]), kind="stable")[:max_nodes]
        new = new[: np.count_nonzero(merged >= len(listed))]
        listed = np.append(listed, np.arange(len(parent), len(parent) + len(new), dtype=np.int32))[merged]
        order[d + 1, : len(listed)] = listed
        if len(new) == 0:
            order[d + 2 :] = order[d + 1]
            break
        its_parent, its_rank = its_parent[new], its_rank[new]
        accepted = rows[d, np.minimum(rank[its_parent], ranks - 1), its_rank]
        above = len(parent)
        parent, rank = np.append(parent, its_parent.astype(np.int32)), np.append(rank, its_rank.astype(np.int32))
        reach, hope = np.append(reach, reach[its_parent] * accepted), np.append(hope, its_hope[new])
    return parent, rank, reach, hope, order, weighed


def parents_of(parent: Int32, chosen: Int32) -> list[int]:
    """Return the parents of the tree that some nodes make, in the nodes' order, given the parents of all."""
    chosen = np.sort(chosen)
    parents: list[int] = np.searchsorted(chosen, parent[chosen]).tolist()
    return [-1, *parents[1:]]


@dataclass(frozen=True, eq=False, repr=False)
class NestedTrees(ArrayRecord):
    """What `grow` found: the tree of n nodes and depth d is the first n nodes of row d of `order`."""

    parent: Int32
    rank: Int32
    reach: Float64
    order: Int32

    @property
    def expected_tokens(self) -> Float64:
        """float64 (D + 1, N + 1): the most tokens per step with depth at most d and at most n nodes."""
        levels, nodes = self.order.shape
        weight = np.where(self.order >= 0, self.reach[self.order], 0.0)
        return np.concatenate([np.zeros((levels, 1)), np.cumsum(weight, axis=1)], axis=1).reshape(levels, nodes + 1)

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
        above = self.parent
        while np.any(above >= 0):
            depth += above >= 0
            above = np.where(above >= 0, self.parent[above], -1)
        return depth


@dataclass(frozen=True, slots=True, eq=False)
class HeaviestNodes:
    """Enough nodes of any table to hold the heaviest trees, with a bound on every node left out."""

    parent: Int32
    """(M,), -1 for the root; parents before their children, siblings in rank order."""
    rank: Int32
    depth: Int32
    reach: Float64
    """(M,): probability that a step reaches each node."""
    hope: Float64
    """(M,): no node is reached more often that hangs below a node, or below a later sibling, or is one; see `grow`."""
    order: Int32
    """(D + 1, N): row d lists nodes of depth at most d that hold every ancestor and earlier sibling; -1 behind them."""
    left_out: Float64
    """(D + 1,): no node of depth at most d that row d does not list is reached more often."""


def heaviest_nodes(rows: Float64, max_nodes: int) -> HeaviestNodes:
    """Return the nodes of most hope.

    Args:
        rows: float64 (D, R, B), in any order.
        max_nodes: N.
    """
    free = np.full(len(rows), max_nodes, np.int32)
    parent, rank, reach, hope, order, _ = grow(rows, max_nodes, free, free)
    left_out = np.where(order[:, -1] >= 0, hope[order[:, -1]], 0.0)
    depth = NestedTrees(parent, rank, reach, order).depth
    return HeaviestNodes(parent, rank, depth, reach, hope, order, left_out)
