"""The nodes that a step drafts where trees grow out of a draft model's probabilities, and the tree of those kept.

No model in sight: log-probabilities and tokens come in pass by pass, and numpy on the host does the rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float32, Int64
from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.models.passes import PassNodes
from treeopt.trees import TokenTree

NOT_FED = -1


class Children(NamedTuple):
    """The likeliest tokens after each of m nodes, the likeliest first."""

    log_probs: Float32
    """float32 (m, k)."""
    tokens: Int64
    """int64 (m, k)."""

    @property
    def finite(self) -> bool:
        """Whether all distributions are; in one that is not, everything is NaN."""
        return all_finite(self.log_probs[:, 0].tolist())


class Beams(NamedTuple):
    """The nodes of one pass, which get children."""

    tokens: Int64
    """int64 (m,)."""
    nodes: PassNodes


class Expanded(NamedTuple):
    """The tree to verify."""

    tree: TokenTree
    tokens: list[int]
    """Those below the root."""
    fed: list[int]
    """Of every node, how many were fed in this step before it, -1 where it was not fed itself."""


class DraftedNodes:
    """All nodes of a step by number: the root is 0, the child of rank r of the node fed at place p is 1 + p k + r.

    Args:
        root: the k children of the root, which is fed at place 0; as many are added of every node that is fed.
        max_fed: most nodes fed, root included.
    """

    def __init__(self, root: Children, max_fed: int) -> None:
        self._per_node = root.tokens.shape[1]
        numbers = 1 + max_fed * self._per_node
        self.scores: Float32 = np.empty(numbers, np.float32)
        """Of every node, the sum of log-probabilities along its path."""
        self.fed: Int64 = np.empty(numbers, np.int64)
        """Of every node, the place at which it was fed, or NOT_FED."""
        self._tokens = np.empty(numbers, np.int64)
        self._depth = np.zeros(max_fed, np.int64)  # this and the next by place
        self._visible = np.empty((max_fed, max_fed), np.bool_)
        self._visible[0] = [True] + [False] * (max_fed - 1)
        self._last, self._places = np.zeros(1, np.int64), slice(0, 1)  # fed last
        self.scores[0] = self.fed[0] = 0
        self.drafted = slice(0, 1)
        """Numbers of the nodes drafted last."""
        self.add(root)

    def feed(self, nodes: Int64) -> Beams:
        """Return drafted nodes, int64 (m,), as the next pass."""
        start = self._places.stop
        self._last, self._places = nodes, slice(start, start + len(nodes))
        parents = (nodes - 1) // self._per_node
        self.fed[nodes] = places = np.arange(start, start + len(nodes))
        self._depth[self._places] = self._depth[parents] + 1
        self._visible[self._places] = self._visible[parents]
        self._visible[places, places] = True
        visible = self._visible[self._places, : self._places.stop]
        return Beams(self._tokens[nodes], PassNodes(visible=visible, depth=self._depth[self._places], start=start))

    def add(self, children: Children) -> None:
        """Add the children of the nodes fed last."""
        first = 1 + self._places.start * self._per_node
        self.drafted = drafted = slice(first, first + children.tokens.size)
        self.scores[drafted] = (self.scores[self._last][:, None] + children.log_probs).ravel()
        self._tokens[drafted] = children.tokens.ravel()
        self.fed[drafted] = NOT_FED

    def tree(self, kept: Int64) -> Expanded:
        """Return the tree of the root and some nodes below it, none without its parent; siblings in the order given."""
        fed = [0, *self.fed[kept].tolist()]
        order, tree = in_level_order(((kept - 1) // self._per_node).tolist(), fed)
        tokens = self._tokens[kept].tolist()
        return Expanded(tree, [tokens[node - 1] for node in order[1:]], [fed[node] for node in order])


def in_level_order(parents: Sequence[int], fed: Sequence[int]) -> tuple[list[int], TokenTree]:
    """Return the root, 0, and the nodes below it in the order of the tree that they are, and this tree.

    Args:
        parents: of every node below the root, the place at which its parent was fed.
        fed: of every node, the place at which it was fed itself, or NOT_FED.

    >>> in_level_order([0, 0, 2, 1], [0, 1, 2, -1, -1])
    ([0, 1, 2, 4, 3], TokenTree(nodes=5, max_depth=2, widths=[1, 2, 2]))
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents, start=1):
        children.setdefault(parent, []).append(node)
    order, above = [0], [-1]
    for index, node in enumerate(order):  # grows while it is read: a breadth-first walk
        below = children.get(fed[node], ())
        order.extend(below)
        above.extend([index] * len(below))
    return order, recurring_tree(tuple(above))


def falling(scores: Float32) -> Int64:
    """Return the indices that sort the last axis in falling order; equal scores stay in the order they have."""
    return (-scores).argsort(axis=-1, kind="stable")
