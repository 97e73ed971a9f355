"""What a drafter is: anything that guesses, in every step, a tree of tokens below the root.

A new one is a class with the three methods of `Drafter`, in a file of its own; docs/drafters/README.md walks through one.
The decoder reads the guesses with the target, accepts what the target samples, and tells the drafter what came of it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from treeopt.arrays import Bool, Int64
from treeopt.runtime.models.finite import Scores
from treeopt.trees import TokenTree


class Extra(NamedTuple):
    """Tokens that ride along in the target's pass without being candidates, such as lookahead's window."""

    tokens: Tensor
    """int64 (m,)."""
    visible: Bool
    """bool (m, n + m): which nodes of the tree, and which of these tokens, each attends to beside the text."""
    depth: Int64
    """int64 (m,): place of each behind the root's."""


class Proposal(NamedTuple):
    """The guesses of one step."""

    tree: TokenTree
    tokens: Tensor
    """int64 (n,): node 0 is the root, the last committed token."""
    extra: Extra | None = None
    scores: Scores | None = None
    """Of the distributions that the tokens come from: where one is not finite, the root alone is verified."""


class Outcome(NamedTuple):
    """What came of a proposal."""

    path: tuple[int, ...]
    """Accepted nodes from the root, 0, down."""
    committed: list[int]
    """Tokens that the step added to the text: the accepted drafts, and the one sampled after them, the next root."""
    logits: Tensor
    """(n + m, V): the target's, after every node and every extra token."""
    hidden: Tensor | None
    """(n + m, hidden): the target's last hidden states, which the logits are made of; None where it tells none."""


class Drafter(Protocol):
    """Guesses trees of tokens; its children of one node are given, not drawn, and stand in rank order."""

    max_nodes: int
    """Most nodes and extra tokens of a proposal together."""

    def start(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        """Begin a text whose last token is the root.

        Args:
            tokens: the whole text, at least one token.
            hidden: (1, hidden), the target's last hidden state before the root's; None where the root stands alone.
        """

    def propose(self) -> Proposal:
        """Return the guesses below the root."""

    def accept(self, outcome: Outcome) -> None:
        """Move on to a new root, the last committed token."""
