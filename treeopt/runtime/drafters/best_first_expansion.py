"""How a tree grows best first: which nodes are fed next, and which of all that were drafted are kept."""

from itertools import islice, takewhile
from math import inf

from treeopt.runtime.drafters.drafted_nodes import Beams, Candidate, DraftedNodes, Expanded, TextChildren
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

    def __init__(self, setting: SpecExecSetting, children: TextChildren) -> None:
        self._setting = setting
        self._nodes = DraftedNodes(children)
        self._pool: list[Candidate] = []  # the best first
        self._left = setting.max_depth - 1
        """Passes that may follow."""
        self._keep_best()

    def frontier(self) -> Beams | None:
        """Return the best nodes that are to be fed next, in falling order; None where no further pass pays or may be."""
        if not self._left:
            return None
        worst = self._pool[-1][0] if self._full else inf
        useful = takewhile(lambda candidate: candidate[0] < worst, self._pool)
        waiting = (candidate for candidate in useful if candidate[1] not in self._nodes.fed)
        nodes = list(islice(waiting, self._setting.batch))
        if not nodes:
            return None
        self._left -= 1
        return self._nodes.feed(nodes)

    def add(self, children: TextChildren) -> None:
        """Add the children of the nodes that `frontier` returned last."""
        self._nodes.add(children)
        self._keep_best()

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        return self._nodes.tree([number for _, number in self._pool])

    @property
    def _full(self) -> bool:
        return len(self._pool) == self._setting.budget - 1

    def _keep_best(self) -> None:
        """Keep the best of the pool and what was drafted last."""
        most = -self._setting.least_log_prob, inf
        limit = min(most, self._pool[-1]) if self._full else most
        better = [candidate for candidate in self._nodes.drafted if candidate <= limit]
        self._pool = sorted(self._pool + better)[: self._setting.budget - 1]
