"""The nodes that a step drafts where trees grow out of a draft model's probabilities, and the trees of those kept.

No model in sight: log-probabilities and tokens come in pass by pass, and the host does the rest, for all texts at once.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float32, Int64
from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.recurring import KEPT_PASSES, recurring_tree
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.models.nodes import NOT_FED, PassNodes
from treeopt.trees import TokenTree
from treeopt.trees.dynamic_tree import DynamicTree
from treeopt.trees.own_trees import SpecExecSetting


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
    """The nodes of one text in a pass, which get children."""

    text: int
    """Its place among those whose trees grow."""
    tokens: Tensor
    """int64 (m,)."""
    nodes: PassNodes


class Expanded(NamedTuple):
    """The tree to verify in one text."""

    tree: TokenTree
    tokens: Tensor
    """int64 (n,), the root's first."""
    fed: list[int]
    """Of every node, how many were fed in this step before it, -1 where it was not fed itself."""
    finite: bool = True
    """Whether all distributions on the way are; where they are not, the root stands alone."""


ExpansionPolicy = DynamicTree | SpecExecSetting
"""Which nodes each pass feeds: the best of the level before, or the best of all, until none can bring a better path."""


class DraftedNodes:
    """All nodes that a step drafts, in several texts, and which of them are fed next.

    With `DynamicTree` the best children of the nodes fed last are fed.

    With `SpecExecSetting` the best nodes of all that were not fed are.  A score never rises along a path.  So a node
    outside the best `budget` - 1 never comes back, nor does anything below it, and a node that is no better than the
    worst of a full set need not be fed.  The best of the nodes not fed yet can be displaced by nothing: every pass fixes
    at least one place of the final set, and `budget` - 1 passes find it (Svirschevski et al., 2024, section 4).

    Args:
        policy: how trees grow.
        texts: how many.
    """

    def __init__(self, policy: ExpansionPolicy, texts: int) -> None:
        from treeopt.runtime.drafters import expansion_on_host as loops  # numba is slow to import

        self._loops, self.texts, self._policy = loops, texts, policy
        self.children = policy.children
        self._least = policy.least_log_prob if isinstance(policy, SpecExecSetting) else -inf
        self._nodes = loops.nodes_of(texts, 1 + policy.children * policy.max_fed, policy.max_fed, policy.max_nodes - 1)
        self._trees = np.empty((texts, 3, policy.max_nodes), np.int64)
        self._tokens = torch.from_numpy(self._trees[:, loops.DRAFTED]).unbind()
        self.begin([0] * texts)

    def compile(self) -> None:
        """Grow no tree, so that the loops are compiled now and not within the first step; to be called of no text."""
        self.begin([])
        self.add(torch.empty(0, self.children), torch.empty((0, self.children), dtype=torch.int64))
        self.frontier()
        self.trees()

    def begin(self, roots: Sequence[int]) -> None:
        """Begin a step with the token of each text's root, which is fed in the first pass."""
        self._loops.begin(self._nodes, np.array(roots, np.int64))
        self._left, self._fed = self._policy.longest_draft - 1, self.texts

    def add(self, log_probs: Tensor, tokens: Tensor) -> None:
        """Add the children of the nodes fed last, text after text: of each float32 and int64 (m, k), the likeliest first.

        A tree in which a distribution is not finite grows no further.

        Raises InvalidValueError for other shapes.
        """
        shape = self._fed, self.children
        if not log_probs.shape == tokens.shape == shape:
            raise InvalidValueError(f"children: expected {shape}. Got {tuple(log_probs.shape)}, {tuple(tokens.shape)}.")
        self._loops.add(self._nodes, log_probs.cpu().numpy(), tokens.cpu().numpy(), self._least)

    def frontier(self) -> list[Beams]:
        """Return the nodes that are fed next, of every text in which there are any; none where no pass is to follow."""
        if not self._left:
            return []
        self._left -= 1
        if isinstance(self._policy, SpecExecSetting):
            self._loops.feed_best(self._nodes, self.children, self._policy.batch)
        else:
            self._loops.feed_beams(self._nodes, self.children)
        counts = self._nodes.counts[:, : self._loops.LAST + 1].tolist()
        self._fed = sum(last for _, last in counts)
        most = max((fed for fed, _ in counts), default=0)
        above = self._nodes.fed[:, self._loops.ABOVE, :most].tolist()
        tokens = self._nodes.fed[:, self._loops.TOKEN]
        return [
            Beams(
                text,
                torch.from_numpy(tokens[text, fed - last : fed]),
                recurring_nodes(tuple(above[text][:fed]), last),
            )
            for text, (fed, last) in enumerate(counts)
            if last
        ]

    def trees(self) -> list[Expanded]:
        """Return the tree of the best nodes of each text, its tokens where the next step writes over them."""
        self._loops.level_order(self._nodes, self.children, self._trees)
        most, found = self._nodes.best.shape[1], []
        for (parents, _, fed), tokens, (_, _, best, finite) in zip(
            self._trees.tolist(), self._tokens, self._nodes.counts.tolist(), strict=True
        ):
            if best < most:
                parents, tokens, fed = parents[: best + 1], tokens[: best + 1], fed[: best + 1]
            found.append(Expanded(recurring_tree(tuple(parents)), tokens, fed, finite == 1))
        return found


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
