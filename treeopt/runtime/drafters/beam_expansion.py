"""How dynamic trees grow: which nodes are fed next, and which of all that were drafted are kept."""

from treeopt.runtime.drafters.drafted_nodes import DraftedNodes
from treeopt.trees.dynamic_tree import DynamicTree


class BeamExpansion(DraftedNodes):
    """The trees of one step in several texts: the best nodes of every level are fed, and the best of all are kept.

    Args:
        tree: how trees grow.
        texts: how many.
    """

    def __init__(self, tree: DynamicTree, texts: int) -> None:
        fed = sum(tree.draft_widths)
        super().__init__(texts, children=tree.top_k, nodes=tree.nodes, fed=fed, passes=tree.depth)

    def _feed(self) -> None:
        self._loops.feed_beams(self._nodes, self.children)
