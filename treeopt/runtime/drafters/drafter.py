"""What a drafter is: anything that drafts, in every step, a tree of tokens below the root.

A new one is a class with the methods of `Drafter`, in a file of its own; docs/guides/add-a-drafter.md walks through one.
The decoder verifies the draft with the target, accepts what the target samples, and tells the drafter which.
Texts are told apart by a number, and what a drafter keeps of one has nothing to do with another.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import NOTHING, States, Wants
from treeopt.trees import TokenTree

__all__ = ["NOTHING", "Drafter", "Proposal", "Scores", "SideTokens", "States", "Step", "Wants"]


class SideTokens(NamedTuple):
    """Tokens that are fed in the target's pass without being candidates, such as lookahead's window."""

    tokens: Tensor
    """int64 (m,)."""
    visible: Bool
    """bool (m, n + m): which nodes of the tree, and which of these tokens, each attends to beside the text.

    Where it is the same object again with the same tree, so is the target's pass.
    """
    depth: Int64
    """int64 (m,): place of each behind the root's."""


class Proposal(NamedTuple):
    """One text's draft of one step."""

    tree: TokenTree
    """Where it is the same object again, so is the target's pass."""
    tokens: Tensor
    """int64 (n,): node 0 is the root, the last committed token."""
    probs: Tensor | None = None
    """float32 (n, V): what the children of each node were sampled from; None where they are given, not sampled."""
    side: SideTokens | None = None
    scores: Scores | None = None
    """Of the distributions that the tokens come from: the draft ends with the level after which one is not finite."""


class Step(NamedTuple):
    """What one text's step came to."""

    path: tuple[int, ...]
    """Accepted nodes from the root, 0, down."""
    tokens: list[int]
    """Committed: the accepted draft tokens, and the one sampled after them, which is the next root."""
    logits: Tensor
    """(n + m, V): the target's, after every node and every side token; they last until the next pass."""
    states: States | None
    """The target's hidden states that the drafter wants, rows as in `logits`; they last as long."""
    cut: bool = False
    """Whether less than the proposal was verified, because a distribution of the draft is not finite."""


@runtime_checkable
class Drafter(Protocol):
    """Drafts trees of tokens, siblings in rank order."""

    @property
    def max_tokens(self) -> int:
        """Most nodes and side tokens of a proposal together."""

    @property
    def sampled(self) -> bool:
        """Whether children are sampled from `Proposal.probs`, which verification rules ask for, or given."""

    @property
    def wants(self) -> Wants:
        """Hidden states of the target that drafts are made from."""

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        """Begin a text whose last token is the root.

        Args:
            text: its number.
            tokens: all of it, at least one token.
            states: the target's, of the last token before the root, or with `Wants.whole_text` of all before it; None
                where the root stands alone or nothing is wanted.
        """

    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return a draft below the root of each of some texts, with the noise of each."""

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """Move on to a new root in each of some texts, the last committed token of its step."""

    def end(self, text: int) -> None:
        """Forget a text; it may have been broken off anywhere, also while it was begun."""


@runtime_checkable
class BatchedDrafter(Drafter, Protocol):
    """A drafter that drafts faster for several texts where it is told before how many there will be."""

    def reserve(self, texts: int) -> None:
        """Make room for so many texts beside those that were begun; may raise OutOfMemoryError."""
