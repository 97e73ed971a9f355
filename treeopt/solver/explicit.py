"""Arbitrary values on given nodes: the best tree of every size among them, by a knapsack over their preorder.

Here a value may be anything, also negative, such as reach less a price. Taking the first of the remaining nodes makes the
next node in preorder available; skipping it skips its descendants and its later siblings too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Bool, Float64, Int32
from treeopt.solver.best_first import parents_of


class Preorder(NamedTuple):
    """Nodes in preorder: every node before its children, children in rank order."""

    node: Int32
    """int32 (M,): the node at each position."""
    skip: Int32
    """int32 (M,): the next position if the node is skipped."""

    def select(self, selected: Bool) -> "Preorder":
        """Return the preorder of the nodes at the selected positions, bool (M,).

        The parent and the earlier siblings of every selected node must be selected.
        """
        position = np.append(0, np.cumsum(selected, dtype=np.int32))
        return Preorder(self.node[selected], position[self.skip[selected]])


def sort_preorder(parent: Int32) -> Preorder:
    """Return the preorder of nodes.

    Args:
        parent: int32 (M,), -1 for the root; parents before their children, siblings in rank order.
    """
    parents: list[int] = parent.tolist()
    size, after = [1] * len(parents), [len(parents)] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        size[parents[node]] += size[node]
    position, free = [0] * len(parents), [1] * len(parents)  # of each node, and of its next child
    for node in range(1, len(parents)):  # parents come first, so their positions are known
        above = parents[node]
        position[node], after[node] = free[above], position[above] + size[above]
        free[above] += size[node]
        free[node] = position[node] + 1
    order = np.empty(len(parents), np.int32)
    order[position] = np.arange(len(parents), dtype=np.int32)
    return Preorder(order, np.array(after, np.int32)[order])


def best_values(values: Float64, skip: Int32, max_nodes: int) -> Float64:
    """Return float64 (M + 1, N + 1): the largest value of exactly n nodes from position i on; -inf where impossible.

    Args:
        values: float64 (M,), in preorder.
        skip: int32 (M,), as `Preorder.skip`.
        max_nodes: N.

    Recurrence: G[i, n] = max(G[skip[i], n], values[i] + G[i + 1, n - 1]), G[M, 0] = 0.
    """
    best = np.full((len(values) + 1, max_nodes + 1), -np.inf)
    best[:, 0] = 0.0
    for i in range(len(values) - 1, -1, -1):
        np.add(best[i + 1, :-1], values[i], out=best[i, 1:])
        np.maximum(best[i, 1:], best[skip[i], 1:], out=best[i, 1:])
    return best


def best_of_any_size(values: Sequence[float], skip: Sequence[int]) -> tuple[float, list[int]]:
    """Return the value and the positions of the best tree of any number of nodes; of equal ones, the smallest.

    Args:
        values: (M,), in preorder.
        skip: (M,), as `Preorder.skip`.

    Recurrence: G[i] = max(G[skip[i]], values[i] + G[i + 1]), G[M] = 0; the root is always taken.
    """
    best = [0.0] * (len(values) + 1)
    here = 0.0
    for i in range(len(values) - 1, 0, -1):
        taken, skipped = values[i] + here, best[skip[i]]
        best[i] = here = taken if taken > skipped else skipped  # noqa: FURB136 (a call for every node takes longer)
    chosen, position = [0], 1
    while position < len(values):
        if best[position] == best[skip[position]]:
            position = skip[position]
        else:
            chosen.append(position)
            position += 1
    return values[0] + best[1], chosen


@dataclass(frozen=True, slots=True, eq=False)
class ExplicitTrees:
    """The best trees among given nodes with given values, for every number of nodes up to `max_nodes`."""

    parent: Int32
    """int32 (M,), -1 for the root; parents before their children, siblings in rank order."""
    preorder: Preorder
    best: Float64
    """float64 (positions + 1, N + 1), from `best_values`."""

    @property
    def values(self) -> Float64:
        """float64 (N + 1,): the largest value of a tree of exactly n nodes; -inf where there is none."""
        return np.asarray(self.best[0])

    def parents(self, nodes: int) -> list[int]:
        """Return the parents of a best tree of exactly `nodes` nodes, each before its children, in rank order."""
        chosen, position, left = [], 0, nodes
        while left > 0:
            skipped = int(self.preorder.skip[position])
            if self.best[position, left] == self.best[skipped, left]:
                position = skipped
            else:
                chosen.append(position)
                position, left = position + 1, left - 1
        return parents_of(self.parent, self.preorder.node[chosen])
