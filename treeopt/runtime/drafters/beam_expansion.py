"""How a dynamic tree grows: which nodes are fed next, and which of all that were drafted are kept."""

from treeopt.runtime.drafters.drafted_nodes import Beams, Candidate, DraftedNodes, Expanded, TextChildren
from treeopt.trees.dynamic_tree import DynamicTree


class BeamExpansion:
    """The tree of one step, from the children of the nodes fed so far.

    The candidates form a pool: level by level, below the beams in falling order, ranks rising.  Of equal scores the
    earlier in the pool comes first, so that no child, whose score is never above its parent's, is taken without it.

    Args:
        tree: how trees grow.
        children: the root's.
    """

    def __init__(self, tree: DynamicTree, children: TextChildren) -> None:
        self._tree = tree
        self._nodes = DraftedNodes(children)
        self._pool: list[Candidate] = []
        self._left = tree.depth - 1
        """Passes that follow."""
        self._take_level()

    def frontier(self) -> Beams | None:
        """Return the best nodes of the last level, in falling order, which are fed next; None below the deepest."""
        if not self._left:
            return None
        self._left -= 1
        return self._nodes.feed(self._level[: self._tree.top_k])

    def add(self, children: TextChildren) -> None:
        """Add the children of the beams."""
        self._nodes.add(children)
        self._take_level()

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        kept = sorted(self._pool)[: self._tree.nodes - 1]
        return self._nodes.tree(sorted(number for _, number in kept))

    def _take_level(self) -> None:
        """Put the last level in order, and all of it into the pool."""
        self._level = sorted(self._nodes.drafted)
        self._pool += self._level
