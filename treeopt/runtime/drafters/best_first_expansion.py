"""How trees grow best first: which nodes are fed next, and which of all that were drafted are kept."""

from treeopt.runtime.drafters.drafted_nodes import DraftedNodes
from treeopt.trees.own_trees import SpecExecSetting


class BestFirstExpansion(DraftedNodes):
    """The trees of one step in several texts: parallel search of the most probable paths.

    A score never rises along a path.  So a node outside the best `budget` - 1 never comes back, nor does anything below
    it, and a node that is no better than the worst of a full set need not be fed.

    The best of the nodes not fed yet can be displaced by nothing: every pass fixes at least one place of the final
    set, and `budget` - 1 passes find it (Svirschevski et al., 2024, section 4).

    Args:
        setting: how trees grow.
        texts: how many.
    """

    def __init__(self, setting: SpecExecSetting, texts: int) -> None:
        super().__init__(
            texts,
            children=setting.branching,
            nodes=setting.budget,
            fed=setting.max_fed,
            passes=setting.max_depth,
            least_log_prob=setting.least_log_prob,
        )
        self._batch = setting.batch

    def _feed(self) -> None:
        self._loops.feed_best(self._nodes, self.children, self._batch)
