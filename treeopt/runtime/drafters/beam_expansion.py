"""How a dynamic tree grows: which nodes are fed next, and which of all that were drafted are kept.

No model in sight: log-probabilities and tokens come in level by level, and numpy on the host does the rest.
"""

from typing import NamedTuple

import numpy as np

from treeopt.arrays import Bool, Float32, Int64
from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.runtime.models.passes import PassNodes
from treeopt.trees import TokenTree
from treeopt.trees.dynamic_tree import DynamicTree


class Children(NamedTuple):
    """The likeliest tokens after each of m nodes, the likeliest first."""

    log_probs: Float32
    """float32 (m, k)."""
    tokens: Int64
    """int64 (m, k)."""

    @property
    def finite(self) -> bool:
        """Whether all distributions are; in one that is not, everything is NaN."""
        return not np.isnan(self.log_probs[:, 0]).any()


class Beams(NamedTuple):
    """The nodes of one level that get children."""

    tokens: Int64
    """int64 (k,)."""
    nodes: PassNodes


class Expanded(NamedTuple):
    """The tree to verify."""

    tree: TokenTree
    tokens: Int64
    """int64 (n - 1,): the tokens below the root."""
    fed: Int64
    """int64 (n,): how many nodes were fed in this step before each node, -1 where it was not fed itself."""


class BeamExpansion:
    """The tree of one step, from the children of the nodes fed so far.

    The candidates form a pool: level by level, below the beams in falling order, ranks rising.  Of equal scores the
    earlier in the pool comes first, so that no child, whose score is never above its parent's, is taken without it.

    Args:
        tree: how trees grow.
        children: the root's.
    """

    def __init__(self, tree: DynamicTree, children: Children) -> None:
        self._tree = tree
        self._scores = [children.log_probs[0]]
        self._tokens = [children.tokens[0]]
        self._parents = [np.zeros(tree.top_k, np.int64)]  # in the pool, where the root stands first
        self._fed = [np.zeros(1, np.int64)]
        self._beam_scores = self._scores[0]
        self._visible = np.ones((1, 1), np.bool_)

    def beams(self) -> Beams:
        """Return the best nodes of the last level, in falling order; they are fed next."""
        top_k, depth = self._tree.top_k, len(self._scores)
        beams = falling(self._scores[-1])[:top_k]
        self._beam_scores = self._scores[-1][beams]
        self._fed.append(beams + (1 + sum(map(len, self._scores[:-1]))))
        start = self._visible.shape[1]
        self._visible = visible_below(self._visible, beams // top_k)
        nodes = PassNodes(visible=self._visible, depth=np.full(top_k, depth), start=start)
        return Beams(self._tokens[-1][beams], nodes)

    def add(self, children: Children) -> None:
        """Add the children of the beams."""
        self._scores.append((self._beam_scores[:, None] + children.log_probs).ravel())
        self._tokens.append(children.tokens.ravel())
        self._parents.append(np.repeat(self._fed[-1], self._tree.top_k))

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        kept = 1 + np.sort(falling(np.concatenate(self._scores))[: self._tree.nodes - 1])
        parents = np.concatenate(self._parents)[kept - 1]
        order, tree = in_level_order(kept.tolist(), parents.tolist())
        fed_order = np.concatenate(self._fed)
        fed = np.full(1 + sum(map(len, self._scores)), -1)
        fed[fed_order] = np.arange(len(fed_order))
        return Expanded(tree, np.concatenate(self._tokens)[order[1:] - 1], fed[order])


def in_level_order(nodes: list[int], parents: list[int]) -> tuple[Int64, TokenTree]:
    """Return the root, 0, and the nodes below it in the order of the tree that they are, and this tree.

    >>> in_level_order([1, 2, 4, 7], [0, 0, 2, 1])
    (array([0, 1, 2, 7, 4]), TokenTree(nodes=5, max_depth=2, widths=[1, 2, 2]))
    """
    children: dict[int, list[int]] = {}
    for node, parent in zip(nodes, parents, strict=True):
        children.setdefault(parent, []).append(node)
    order, above = [0], [-1]
    for place, node in enumerate(order):  # grows while it is read: a breadth-first walk
        below = children.get(node, [])
        order.extend(below)
        above.extend([place] * len(below))
    return np.array(order), recurring_tree(tuple(above))


def visible_below(visible: Bool, parents: Int64) -> Bool:
    """Return which nodes, fed before or now, each child may attend to: what its parent may, and itself.

    Args:
        visible: bool (rows, columns), of the pass before, whose nodes are the last columns.
        parents: int64 (m,), the row of each child's parent.
    """
    return np.hstack([visible[parents], np.eye(len(parents), dtype=np.bool_)])


def falling(scores: Float32) -> Int64:
    """Return the indices that sort the last axis in falling order; equal scores stay in the order they have."""
    return np.argsort(-scores, axis=-1, kind="stable")
