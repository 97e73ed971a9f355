"""Best-first growth: exact for rows that never rise, and then every budget's tree lies inside the next one's.

Weigh every node by the probability that a step reaches it.  Where rows never rise, no node weighs more than its parent
or the sibling before it.  So the n heaviest nodes of depth at most d form a tree, and no tree of n nodes and depth d
weighs more: the optimum for every n at once is one list of nodes in order of weight (docs/solver.md).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from treeopt.array_record import ArrayRecord

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@njit(cache=True)
def heaviest(weight: FloatArray, most: int) -> npt.NDArray[np.int64]:
    """Return the places of the `most` largest weights, heaviest first, ties in the order given."""
    places = np.arange(len(weight))
    if len(weight) > most:  # sorting what cannot be taken would be most of the time
        places = places[weight >= np.partition(weight, len(weight) - most)[len(weight) - most]]
    return places[np.argsort(-weight[places], kind="mergesort")][:most]


@njit(cache=True)
def children(
    hopes: FloatArray, parents: IntArray, rank: IntArray, reach: FloatArray, floor: float
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return hope, parent and rank of every child of `parents` whose hope is more than `floor`.

    Args:
        hopes: float64 (R, B), the best acceptance of each rank or any behind it, below parents of rank 0 … R - 1.
        parents: int32, which nodes.
        rank: of every node so far.
        reach: probability that a step reaches each of them.
        floor: what a child's hope, the most that it or any node behind it weighs, has to exceed.
    """
    most = len(parents) * hopes.shape[1]
    hope, parent, child = np.empty(most), np.empty(most, np.int32), np.empty(most, np.int32)
    count = 0
    for node in parents:
        row = hopes[min(rank[node], len(hopes) - 1)]
        for k in range(len(row)):
            if reach[node] * row[k] <= floor:
                break  # neither can later siblings exceed it
            hope[count], parent[count], child[count] = reach[node] * row[k], node, k
            count += 1
    return hope[:count], parent[:count], child[:count]


@njit(cache=True)
def grow(
    rows: FloatArray, max_nodes: int, level_widths: IntArray, draft_widths: IntArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray, int]:
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
    levels = len(rows)
    hopes = rows.copy()
    for k in range(rows.shape[2] - 2, -1, -1):
        hopes[:, :, k] = np.maximum(hopes[:, :, k], hopes[:, :, k + 1])
    most = 1 + levels * max_nodes
    parent, rank, reach, hope = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most), np.empty(most)
    order = np.full((levels + 1, max_nodes), -1, np.int32)
    parent[0], rank[0], reach[0], hope[0] = -1, 0, 1.0, 1.0
    order[:, 0] = 0
    above, end, joined, weighed = 0, 1, 1, 1  # the deepest level is [above, end); order holds `joined` nodes
    for d in range(levels):
        floor = hope[order[d, joined - 1]] if joined == max_nodes else 0.0
        parents = np.arange(above, min(end, above + draft_widths[d])).astype(np.int32)
        its_hope, its_parent, its_rank = children(hopes[d], parents, rank, reach, floor)
        weighed += len(its_hope)
        new = heaviest(its_hope, min(max_nodes, level_widths[d]))
        old, taken, place = 0, 0, 0
        while place < max_nodes and (old < joined or taken < len(new)):
            if old < joined and (taken == len(new) or hope[order[d, old]] >= its_hope[new[taken]]):
                order[d + 1, place] = order[d, old]
                old += 1
            else:
                node, origin, k = end + taken, its_parent[new[taken]], its_rank[new[taken]]
                parent[node], rank[node], hope[node] = origin, k, its_hope[new[taken]]
                reach[node] = reach[origin] * rows[d, min(rank[origin], rows.shape[1] - 1), k]
                order[d + 1, place] = node
                taken += 1
            place += 1
        above, end, joined = end, end + taken, place
        if taken == 0:
            order[d + 2 :] = order[d + 1]
            break
    return parent[:end], rank[:end], reach[:end], hope[:end], order, weighed


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NestedTrees(ArrayRecord):
    """What `grow` found: the tree of n nodes and depth d is the first n nodes of row d of `order`."""

    parent: IntArray
    rank: IntArray
    reach: FloatArray
    order: IntArray

    @property
    def expected_tokens(self) -> FloatArray:
        """float64 (D + 1, N + 1): the most tokens per step with depth at most d and at most n nodes."""
        levels, nodes = self.order.shape
        weight = np.where(self.order >= 0, self.reach[self.order], 0.0)
        return np.concatenate([np.zeros((levels, 1)), np.cumsum(weight, axis=1)], axis=1).reshape(levels, nodes + 1)

    def parents(self, nodes: int, depth: int) -> list[int]:
        """Return the parents of one tree, each before its children, siblings in rank order."""
        chosen = self.order[depth, :nodes]
        chosen = np.sort(chosen[chosen >= 0])
        parents = np.searchsorted(chosen, self.parent[chosen])
        parents[0] = -1
        return [int(parent) for parent in parents]

    def draft_widths(self) -> IntArray:
        """Return int32 (D + 1, N + 1, D): internal nodes at each depth of each tree.

        A node becomes internal when its first child joins.
        """
        levels, nodes = self.order.shape
        depth = self.depth
        widths = np.zeros((levels, nodes + 1, max(0, levels - 1)), np.int32)
        for limit in range(1, levels):
            joined = self.order[limit][self.order[limit] >= 0]
            first = np.flatnonzero((self.rank[joined] == 0) & (joined > 0))
            widths[limit, first + 1, depth[joined[first]] - 1] = 1
        return np.cumsum(widths, axis=1, dtype=np.int32)

    @property
    def depth(self) -> IntArray:
        """int32 (M,): depth of every node."""
        depth = np.zeros(len(self.parent), np.int32)
        for node in range(1, len(depth)):
            depth[node] = depth[self.parent[node]] + 1
        return depth


@dataclass(frozen=True, slots=True, eq=False)
class HeaviestNodes:
    """Enough nodes of any table to hold the heaviest trees, with a bound on every node left out."""

    parent: IntArray
    """(M,), -1 for the root; parents before their children, siblings in rank order."""
    rank: IntArray
    depth: IntArray
    reach: FloatArray
    """(M,): probability that a step reaches each node."""
    order: IntArray
    """(D + 1, N): row d lists nodes of depth at most d that hold every ancestor and earlier sibling; -1 behind them."""
    left_out: FloatArray
    """(D + 1,): no node of depth at most d that row d does not list is reached more often."""


def heaviest_nodes(rows: FloatArray, max_nodes: int) -> HeaviestNodes:
    """Return the nodes of most hope.

    Args:
        rows: float64 (D, R, B), in any order.
        max_nodes: N.
    """
    free = np.full(len(rows), max_nodes, np.int32)
    parent, rank, reach, hope, order, _ = grow(np.ascontiguousarray(rows), max_nodes, free, free)
    left_out = np.where(order[:, -1] >= 0, hope[order[:, -1]], 0.0)
    depth = NestedTrees(parent, rank, reach, order).depth
    return HeaviestNodes(parent, rank, depth, reach, order, left_out)
