"""The target's passes over proposals, kept for trees that come again."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from treeopt.arrays import Bool
from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import SideTokens
from treeopt.runtime.drafters.recurring import KEPT_PASSES, KEPT_TREES
from treeopt.runtime.models.passes import Pass, Passes, PassNodes
from treeopt.trees import TokenTree

KEPT = 8
"""Trees whose passes are kept."""


Key = tuple[TokenTree, int]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tree with side tokens, and the pass over them."""

    tree: TokenTree
    side: Bool | None
    """What side tokens see; None without any."""
    children: tuple[range, ...]
    """Of every node."""
    run: Pass
    lasting: bool
    """Whether the pass is for texts of any length."""


class PreparedTrees:
    """Makes the target's passes over proposals and keeps those used last.

    What comes once costs a mask behind the text as it is now; what comes again, one for texts of any length, or on a
    device a captured graph.  Equal trees are one; side tokens come again where their mask is the same object.

    Args:
        passes: of the target.
        trained: longest text of the target, and the deepest token.
    """

    def __init__(self, passes: Passes, *, trained: int) -> None:
        self._passes = passes
        self._trained = trained
        self._kept: OrderedDict[Key, Prepared] = OrderedDict()
        self._last: Prepared | None = None

    def make(self, tree: TokenTree) -> None:
        """Prepare a tree that will come again and again, where it is not."""
        found = self._kept.get((tree, 0))
        if found is None or not found.lasting:
            (run,) = self._passes.make([_nodes(tree, None)])
            found = Prepared(tree, None, children_of(tree), run, True)
        self._keep((tree, 0), found)

    def of(self, tree: TokenTree, side: SideTokens | None) -> Prepared:
        """Return a tree prepared with its side tokens.

        Raises InvalidValueError for tokens further behind the root than the target was trained for.
        """
        visible = None if side is None else side.visible
        last = self._last
        if last is not None and last.tree is tree and last.side is visible and last.lasting:
            return last  # most often, and then nothing is looked up
        key = tree, 0 if side is None else id(side.visible)
        found = self._kept.get(key)
        if found is None:
            run = self._passes.once(self._checked(tree, side))
            found = Prepared(tree, visible, children_of(tree), run, False)
        elif not found.lasting:
            (run,) = self._passes.make([_nodes(tree, side)])
            found = replace(found, run=run, lasting=True)
        return self._keep(key, found)

    def children(self, tree: TokenTree) -> tuple[range, ...]:
        """Return the children of every node of a tree, most often of the one prepared last."""
        last = self._last
        return last.children if last is not None and last.tree is tree else children_of(tree)

    def _keep(self, key: Key, prepared: Prepared) -> Prepared:
        self._kept[key] = self._last = prepared
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return prepared

    def _checked(self, tree: TokenTree, side: SideTokens | None) -> PassNodes:
        nodes = _nodes(tree, side)
        deepest = max(nodes.depth.tolist())
        if deepest > self._trained:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"drafter: expected tokens at most {self._trained} places behind the root, the trained length. "
                f"Got {deepest}: ask for a smaller window or depth.",
                field="drafter",
            )
        return nodes


@lru_cache(maxsize=KEPT_TREES)
def children_of(tree: TokenTree) -> tuple[range, ...]:
    """Return the indices of every node's children."""
    counts = [0] * tree.nodes
    for parent in tree.parents[1:].tolist():
        counts[parent] += 1
    return tuple(range(first, end) for first, end in pairwise(accumulate(counts, initial=1)))


_whole = lru_cache(maxsize=KEPT_PASSES)(PassNodes.whole)


def _nodes(tree: TokenTree, side: SideTokens | None) -> PassNodes:
    if side is None:
        return _whole(tree)
    visible = joined_mask(tree.ancestor_mask, side.visible)
    return PassNodes(visible=visible, depth=np.concatenate([tree.depth, side.depth]))


def joined_mask(tree: Bool, side: Bool) -> Bool:
    """Return the mask of nodes and side tokens together; no node sees a side token."""
    nodes, rest = len(tree), len(side)
    return np.vstack([np.hstack([tree, np.zeros((nodes, rest), np.bool_)]), side])
