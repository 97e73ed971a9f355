"""How a tree grows best first: which nodes are fed next, and which of all that were drafted are kept."""

import numpy as np

from treeopt.arrays import Float32, Int64
from treeopt.runtime.drafters.drafted_nodes import NOT_FED, Beams, Children, DraftedNodes, Expanded, falling
from treeopt.trees.specexec import SpecExecSetting


class BestFirstExpansion:
    """The tree of one step, from the children of the nodes fed so far: parallel search of the most probable paths.

    A score never rises along a path.  So a node outside the best `budget` - 1 never comes back, nor does anything below
    it, and a node that is no better than the worst of a full set need not be fed.  Of equal scores the one drafted
    first counts, so that no child is taken without its parent.

    The best of the nodes not fed yet can be displaced by nothing: every pass fixes at least one place of the final
    set, and `budget` - 1 passes find it (Svirschevski et al., 2024, section 4).

    Args:
        setting: how trees grow.
        children: the root's.
    """

    def __init__(self, setting: SpecExecSetting, children: Children) -> None:
        self._setting = setting
        self._nodes = DraftedNodes(children, setting.max_fed)
        self._pool: Int64 = np.empty(0, np.int64)  # by falling score, equal ones in the order of drafting
        self._scores: Float32 = np.empty(0, np.float32)  # of these
        self._keep_best()

    def frontier(self) -> Beams | None:
        """Return the best nodes that are to be fed next, in falling order; None where no further one is of use."""
        full = len(self._pool) == self._setting.budget - 1
        useful = self._pool[self._scores > self._scores[-1]] if full else self._pool
        waiting = useful[self._nodes.fed[useful] == NOT_FED][: self._setting.batch]
        return self._nodes.feed(waiting) if len(waiting) else None

    def add(self, children: Children) -> None:
        """Add the children of the nodes that `frontier` returned last."""
        self._nodes.add(children)
        self._keep_best()

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        return self._nodes.tree(self._pool)

    def _keep_best(self) -> None:
        """Keep the best of the pool and what was drafted last."""
        drafted = self._nodes.drafted
        pool = np.concatenate([self._pool, np.arange(drafted.start, drafted.stop)])
        scores = self._nodes.scores[pool]
        best = falling(scores)[: self._setting.budget - 1]
        best = best[scores[best] >= self._setting.least_log_prob]
        self._pool, self._scores = pool[best], scores[best]
