"""The nodes that the target is fed of a proposal: those of its tree, and its side tokens."""

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from treeopt.arrays import Bool
from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Proposal, SideTokens
from treeopt.runtime.drafters.recurring import KEPT_TREES
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree

KEPT = 16
"""Trees whose nodes are stored, with their masks."""

tree_nodes = lru_cache(maxsize=KEPT)(PassNodes.whole)


class ProposalNodes:
    """Makes the nodes of one text's proposals; the last with side tokens serve again where their mask is the same object.

    Args:
        longest: text that the target was trained for, and the deepest token.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._last: PassNodes | None = None
        self._last_tree: TokenTree | None = None
        self._last_side: Bool | None = None

    def of(self, proposal: Proposal) -> PassNodes:
        """Return the nodes of a proposal.

        Raises InvalidValueError for tokens further from the root than the target was trained for.
        """
        tree, side = proposal.tree, None if proposal.side is None else proposal.side.visible
        if self._last is not None and self._last_tree is tree and self._last_side is side:
            return self._last  # most often, and then nothing is looked up
        nodes = tree_nodes(tree) if proposal.side is None else _joined_nodes(tree, proposal.side)
        deepest = max(nodes.depth.tolist())
        if deepest > self._longest:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"drafter: expected tokens at most {self._longest} places behind the root, the trained length. "
                f"Got {deepest}: ask for a smaller window or depth.",
                field="drafter",
            )
        self._last, self._last_tree, self._last_side = nodes, tree, side
        return nodes


@lru_cache(maxsize=KEPT_TREES)
def children_of(tree: TokenTree) -> tuple[range, ...]:
    """Return the indices of every node's children."""
    counts = [0] * tree.nodes
    for parent in tree.parents[1:].tolist():
        counts[parent] += 1
    return tuple(range(first, end) for first, end in pairwise(accumulate(counts, initial=1)))


def _joined_nodes(tree: TokenTree, side: SideTokens) -> PassNodes:
    visible = joined_mask(tree.ancestor_mask, side.visible)
    return PassNodes(visible=visible, depth=np.concatenate([tree.depth, side.depth]))


def joined_mask(tree: Bool, side: Bool) -> Bool:
    """Return the mask of nodes and side tokens together; no node sees a side token."""
    nodes, rest = len(tree), len(side)
    return np.vstack([np.hstack([tree, np.zeros((nodes, rest), np.bool_)]), side])
