"""The nodes that a step drafts where trees grow out of a draft model's probabilities, and the tree of those kept.

No model in sight: log-probabilities and tokens come in pass by pass, and the host does the rest.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float32, Int64
from treeopt.runtime.drafters.recurring import KEPT_PASSES, KEPT_TREES, recurring_tree
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.models.passes import PassNodes
from treeopt.trees import TokenTree

NOT_FED = -1
Candidate = tuple[float, int]
"""Minus the sum of log-probabilities along a path, in float32, and its node's number: the best is the least, of equal
ones that drafted first."""


class TextChildren(NamedTuple):
    """The k likeliest tokens after each node that a text fed in a pass, a row for each, the likeliest first."""

    log_probs: list[list[float]]
    tokens: list[list[int]]

    @property
    def finite(self) -> bool:
        """Whether all distributions are; in one that is not, everything is NaN."""
        return all_finite([row[0] for row in self.log_probs])

    def last(self) -> "TextChildren":
        """Return those of the node fed last."""
        return TextChildren(self.log_probs[-1:], self.tokens[-1:])


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

    They are few, and so lists cost less than calls of numpy, most of all between two passes, when caches are cold.

    Args:
        root: the k children of the root, which is fed at place 0; as many are added of every node that is fed.
    """

    def __init__(self, root: TextChildren) -> None:
        self._per_node = len(root.tokens[0])
        self.fed = {0: 0}
        """Of every node that was fed, the place at which it was."""
        self._tokens = [0]
        self._above = [NOT_FED]
        """Of every place, the one of the parent."""
        self._last: Sequence[Candidate] = [(0.0, 0)]
        self.add(root)

    def feed(self, nodes: Sequence[Candidate]) -> Beams:
        """Return drafted nodes as the next pass."""
        for place, (_, number) in enumerate(nodes, len(self._above)):
            self.fed[number] = place
            self._above.append((number - 1) // self._per_node)
        self._last = nodes
        tokens = np.array([self._tokens[number] for _, number in nodes])
        return Beams(tokens, recurring_nodes(tuple(self._above), len(nodes)))

    def add(self, children: TextChildren) -> None:
        """Add the children of the nodes fed last."""
        rows = zip(self._last, children.log_probs, strict=True)
        surprisals = array("f", [above - log_prob for (above, _), row in rows for log_prob in row])
        self.drafted: list[Candidate] = list(zip(surprisals, count(len(self._tokens)), strict=False))
        """The children of the nodes fed last, node after node, the likeliest first."""
        self._tokens += chain.from_iterable(children.tokens)

    def tree(self, kept: Sequence[int]) -> Expanded:
        """Return the tree of the root and some nodes below it, none without its parent; siblings in the order given."""
        fed = (0, *[self.fed.get(number, NOT_FED) for number in kept])
        order, tree = in_level_order(tuple([(number - 1) // self._per_node for number in kept]), fed)
        tokens = [self._tokens[kept[node - 1]] for node in order[1:]]
        return Expanded(tree, tokens, [fed[node] for node in order])


@lru_cache(maxsize=KEPT_PASSES)
def recurring_nodes(above: tuple[int, ...], count: int) -> PassNodes:
    """Return the pass over the last so many of some nodes, the same object as before where it was asked for not long ago.

    Args:
        above: of every node, where its parent stands, before it; NOT_FED for the root.
        count: how many are fed now, those before them earlier in the step.
    """
    start, depth, visible = len(above) - count, [], bytearray()
    for node in range(start, len(above)):
        seen, place, level = bytearray(len(above)), node, -1
        while place != NOT_FED:
            seen[place] = True
            place, level = above[place], level + 1
        visible += seen
        depth.append(level)
    return PassNodes(
        visible=np.frombuffer(bytes(visible), np.bool_).reshape(count, len(above)), depth=np.array(depth), start=start
    )


@lru_cache(maxsize=KEPT_TREES)
def in_level_order(parents: tuple[int, ...], fed: tuple[int, ...]) -> tuple[tuple[int, ...], TokenTree]:
    """Return the root, 0, and the nodes below it in the order of the tree that they are, and this tree.

    Args:
        parents: of every node below the root, the place at which its parent was fed.
        fed: of every node, the place at which it was fed itself, or NOT_FED.

    >>> in_level_order((0, 0, 2, 1), (0, 1, 2, -1, -1))
    ((0, 1, 2, 4, 3), TokenTree(nodes=5, max_depth=2, widths=[1, 2, 2]))
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents, start=1):
        children.setdefault(parent, []).append(node)
    order, above = [0], [-1]
    for index, node in enumerate(order):  # grows while it is read: a breadth-first walk
        below = children.get(fed[node], ())
        order.extend(below)
        above.extend([index] * len(below))
    return tuple(order), recurring_tree(tuple(above))
