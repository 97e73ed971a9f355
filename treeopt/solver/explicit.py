"""Arbitrary weights on given nodes: the best tree of every size among them, by a knapsack over their preorder.

The other methods weigh nodes by acceptance.  Here a weight may be anything, also negative, such as acceptance less a
price: take the first of the nodes left, and the next in preorder becomes available; leave it, and everything that
hangs below or comes later among its siblings is lost with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Bool, Float64, Int32
from treeopt.solver.best_first import parents_of


class Preorder(NamedTuple):
    """Nodes in preorder: every node before its children, and these in rank order."""

    node: Int32
    """(M,): which node stands at each place."""
    skip: Int32
    """(M,): the place that follows when the node is left out."""

    def only(self, kept: Bool) -> "Preorder":
        """Return the places that are kept, (M,); of every node kept the parent and the earlier siblings are."""
        place = np.append(0, np.cumsum(kept, dtype=np.int32))
        return Preorder(self.node[kept], place[self.skip[kept]])


def preorder(parent: Int32) -> Preorder:
    """Return the preorder of nodes given by their parents.

    Args:
        parent: (M,), -1 for the root; parents before their children, siblings in rank order.
    """
    parents: list[int] = parent.tolist()
    size, after = [1] * len(parents), [len(parents)] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        size[parents[node]] += size[node]
    place, free = [0] * len(parents), [1] * len(parents)  # where a node stands, and the next child of it
    for node in range(1, len(parents)):  # parents come first, so their places are known
        above = parents[node]
        place[node], after[node] = free[above], place[above] + size[above]
        free[above] += size[node]
        free[node] = place[node] + 1
    order = np.empty(len(parents), np.int32)
    order[place] = np.arange(len(parents), dtype=np.int32)
    return Preorder(order, np.array(after, np.int32)[order])


def most_weight(weight: Float64, skip: Int32, max_nodes: int) -> Float64:
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
        np.add(best[i + 1, :-1], weight[i], out=best[i, 1:])
        np.maximum(best[i, 1:], best[skip[i], 1:], out=best[i, 1:])
    return best


def heaviest_of_any_size(weight: Sequence[float], skip: Sequence[int]) -> tuple[float, list[int]]:
    """Return what the heaviest tree weighs, of however many nodes, and its places; in a tie the one with the fewest.

    Args:
        weight: (M,) in preorder.
        skip: (M,), from `preorder`.

    Recurrence: G[i] = max(G[skip[i]], weight[i] + G[i + 1]), G[M] = 0; the root is always taken.
    """
    best = [0.0] * (len(weight) + 1)
    here = 0.0
    for i in range(len(weight) - 1, 0, -1):
        taken, left = weight[i] + here, best[skip[i]]
        best[i] = here = taken if taken > left else left  # noqa: FURB136 (a call for every node takes longer)
    chosen, place = [0], 1
    while place < len(weight):
        if best[place] == best[skip[place]]:
            place = skip[place]
        else:
            chosen.append(place)
            place += 1
    return weight[0] + best[1], chosen


@dataclass(frozen=True, slots=True, eq=False)
class ExplicitTrees:
    """The best trees among given nodes with given weights, for every number of nodes up to `max_nodes`."""

    parent: Int32
    """(M,), -1 for the root; parents before their children, siblings in rank order."""
    places: Preorder
    best: Float64
    """(places + 1, N + 1), from `most_weight`."""

    @property
    def weights(self) -> Float64:
        """(N + 1,): the most that a tree of exactly n nodes weighs; minus infinity where there is none."""
        return np.asarray(self.best[0])

    def parents(self, nodes: int) -> list[int]:
        """Return the parents of a heaviest tree of exactly `nodes` nodes, each before its children, in rank order."""
        chosen, place, left = [], 0, nodes
        while left > 0:
            skipped = int(self.places.skip[place])
            if self.best[place, left] == self.best[skipped, left]:
                place = skipped
            else:
                chosen.append(place)
                place, left = place + 1, left - 1
        return parents_of(self.parent, self.places.node[chosen])
