"""Arbitrary weights on given nodes: the best tree of every size among them, by a knapsack over their preorder.

The other kernels weigh nodes by acceptance.  Here a weight may be anything, also negative, such as acceptance less a
price: take the first of the nodes left, and the next in preorder becomes available; leave it, and everything that
hangs below or comes later among its siblings is lost with it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@njit(cache=True)
def preorder(parent: IntArray) -> tuple[IntArray, IntArray]:
    """Return the nodes in preorder, and for each place the place that follows when its node is left out.

    Args:
        parent: (M,), -1 for the root; parents before their children, siblings in rank order.
    """
    count = len(parent)
    child, sibling = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    for node in range(count - 1, 0, -1):
        sibling[node] = child[parent[node]]
        child[parent[node]] = node
    size = np.ones(count, np.int32)
    for node in range(count - 1, 0, -1):
        size[parent[node]] += size[node]
    order, skip = np.empty(count, np.int32), np.empty(count, np.int32)
    place = np.zeros(count, np.int32)  # of each node
    for node in range(count):  # parents come first, so their places are known
        at = place[node]
        order[at] = node
        skip[at] = count if node == 0 else place[parent[node]] + size[parent[node]]
        below, at = child[node], at + 1
        while below >= 0:
            place[below] = at
            at += size[below]
            below = sibling[below]
    return order, skip


@njit(cache=True)
def most_weight(weight: FloatArray, skip: IntArray, max_nodes: int) -> FloatArray:
    """Return (M + 1, N + 1): the most that exactly n of the nodes from place i on weigh; minus infinity if impossible.

    Args:
        weight: (M,) in preorder.
        skip: (M,), from `preorder`.
        max_nodes: N.

    Recurrence: G[i, n] = max(G[skip[i], n], weight[i] + G[i + 1, n - 1]), G[M, 0] = 0.
    """
    best = np.full((len(weight) + 1, max_nodes + 1), -np.inf)
    best[:, 0] = 0.0
    for i in range(len(weight) - 1, -1, -1):
        for n in range(1, max_nodes + 1):
            best[i, n] = max(best[skip[i], n], weight[i] + best[i + 1, n - 1])
    return best


@dataclass(frozen=True, slots=True, eq=False)
class ExplicitTrees:
    """The best trees among given nodes with given weights, for every number of nodes up to `max_nodes`."""

    parent: IntArray
    """(M,), -1 for the root; parents before their children, siblings in rank order."""
    order: IntArray
    skip: IntArray
    best: FloatArray
    """(M + 1, N + 1), from `most_weight`."""

    @property
    def weights(self) -> FloatArray:
        """(N + 1,): the most that a tree of exactly n nodes weighs; minus infinity where there is none."""
        return np.asarray(self.best[0])

    def parents(self, nodes: int) -> list[int]:
        """Return the parents of a heaviest tree of exactly `nodes` nodes, each before its children, in rank order."""
        chosen, place, left = [], 0, nodes
        while left > 0:
            if self.best[place, left] == self.best[self.skip[place], left]:
                place = int(self.skip[place])
            else:
                chosen.append(int(self.order[place]))
                place, left = place + 1, left - 1
        chosen.sort()
        number = {node: i for i, node in enumerate(chosen)}
        return [-1, *(number[int(self.parent[node])] for node in chosen[1:])]


def solve_explicit(parent: IntArray, weight: FloatArray, max_nodes: int) -> ExplicitTrees:
    """Return the best tree of exactly n nodes for every n up to `max_nodes`, exactly, in O(M N).

    Args:
        parent: int32 (M,), -1 for the root; parents before their children, siblings in rank order.
        weight: float64 (M,), of each node.
        max_nodes: N.
    """
    order, skip = preorder(parent)
    return ExplicitTrees(parent, order, skip, most_weight(weight[order], skip, max_nodes))
