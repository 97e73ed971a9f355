"""How a tree grows best first: which nodes are fed next, and which of all that were drafted are kept.

No model in sight: log-probabilities and tokens come in pass by pass, and numpy on the host does the rest.
"""

import numpy as np
import numpy.typing as npt

from treeopt.runtime.drafters.beam_expansion import Beams, Children, Expanded, falling, in_level_order
from treeopt.runtime.models.passes import PassNodes
from treeopt.trees.specexec import SpecExecSetting

NOT_FED = -1
CANDIDATE = np.dtype(
    [
        ("score", np.float32),  # sum of log-probabilities along the path
        ("token", np.int64),
        ("depth", np.int64),
        ("parent", np.int64),  # place at which the parent was fed; the root's is 0
        ("fed", np.int64),  # place at which it was fed itself, or NOT_FED
    ],
    align=True,  # torch reads the fields in place
)
"""A node that may be verified."""
Candidates = npt.NDArray[np.void]


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
        self._above = np.zeros((1, 1), np.int64)  # (fed, passes): places along the path to each, filled up with 0
        self._pool: Candidates = np.empty(0, CANDIDATE)  # by falling score, equal ones in the order of drafting
        self._draft(np.zeros(1, CANDIDATE), children)

    def frontier(self) -> Beams | None:
        """Return the best nodes that are to be fed next, in falling order; None where no further one is of use."""
        score = self._pool["score"]
        full = len(score) == self._setting.budget - 1
        worst = score[-1] if full else -np.inf
        self._last = np.flatnonzero((self._pool["fed"] == NOT_FED) & (score > worst))[: self._setting.batch]
        if len(self._last) == 0:
            return None
        start = len(self._above)
        self._pool["fed"][self._last] = np.arange(start, start + len(self._last))
        nodes = self._pool[self._last]
        passes = self._above.shape[1]
        above = np.empty((len(nodes), passes + 1), np.int64)
        above[:, :passes], above[:, passes] = self._above[nodes["parent"]], nodes["fed"]
        larger = np.zeros((start + len(nodes), passes + 1), np.int64)
        larger[:start, :passes], larger[start:] = self._above, above
        self._above = larger
        visible = np.zeros((len(nodes), start + len(nodes)), np.bool_)
        np.put_along_axis(visible, above, True, axis=1)
        return Beams(nodes["token"], PassNodes(visible=visible, depth=nodes["depth"], start=start))

    def add(self, children: Children) -> None:
        """Add the children of the nodes that `frontier` returned last."""
        self._draft(self._pool[self._last], children)

    def best(self) -> Expanded:
        """Return the tree of the best candidates."""
        at_place = np.zeros(len(self._above), np.int64)
        fed = np.flatnonzero(self._pool["fed"] != NOT_FED)
        at_place[self._pool["fed"][fed]] = 1 + fed
        nodes = np.arange(1, 1 + len(self._pool))
        order, tree = in_level_order(nodes.tolist(), at_place[self._pool["parent"]].tolist())
        return Expanded(tree, self._pool["token"][order[1:] - 1], np.concatenate([[0], self._pool["fed"]])[order])

    def _draft(self, nodes: Candidates, children: Children) -> None:
        """Add the children of some nodes that were fed, and keep the best of all."""
        drafted = np.empty(children.tokens.shape, CANDIDATE)
        drafted["score"] = nodes["score"][:, None] + children.log_probs
        drafted["token"] = children.tokens
        drafted["depth"] = nodes["depth"][:, None] + 1
        drafted["parent"] = nodes["fed"][:, None]
        drafted["fed"] = NOT_FED
        pool = np.concatenate([self._pool, drafted.ravel()])
        best = pool[falling(pool["score"])[: self._setting.budget - 1]]
        self._pool = best[best["score"] >= self._setting.least_log_prob]
