"""How a dynamic tree grows: which nodes are fed next, and which of all that were drafted are kept."""

import numpy as np

from treeopt.runtime.drafters.drafted_nodes import Beams, Children, DraftedNodes, Expanded, falling
from treeopt.trees.dynamic_tree import DynamicTree


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
        self._nodes = DraftedNodes(children, sum(tree.draft_widths))

    def beams(self) -> Beams:
        """Return the best nodes of the last level, in falling order; they are fed next."""
        level = self._nodes.drafted
        return self._nodes.feed(level.start + falling(self._nodes.scores[level])[: self._tree.top_k])

    def add(self, children: Children) -> None:
        """Add the children of the beams."""
        self._nodes.add(children)

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        pool = self._nodes.scores[1 : self._nodes.drafted.stop]
        return self._nodes.tree(1 + np.sort(falling(pool)[: self._tree.nodes - 1]))
