"""The interface of a drafter: in every step it proposes a tree of tokens below the root of each sequence.

A new drafter is a class with the methods of `Drafter`, in its own file; docs/guides/add-a-drafter.md builds one.
Sequences are identified by numbers, and the state of one does not depend on another.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import NO_STATES, HiddenStates, RequestedStates
from treeopt.trees import TokenTree

__all__ = ["NO_STATES", "Drafter", "HiddenStates", "Proposal", "RequestedStates", "Scores", "SideTokens", "Step"]


class SideTokens(NamedTuple):
    """Tokens that share the target's pass without being candidates, such as lookahead's window."""

    tokens: Tensor
    """int64 (m,)."""
    visible: Bool
    """bool (m, n + m): which tree nodes and side tokens each attends to, besides the committed tokens.

    Pass the same object again with the same tree: the target's pass then reuses its mask.
    """
    depth: Int64
    """int64 (m,): position relative to the root."""


class Proposal(NamedTuple):
    """The draft of one sequence in one step."""

    tree: TokenTree
    """Interned with `intern_tree`, so that the target's pass reuses its mask."""
    tokens: Tensor
    """int64 (n,): node 0 is the root, the last committed token."""
    probs: Tensor | None = None
    """float32 (n, V): what the children of each node were sampled from; None if they were not sampled."""
    side: SideTokens | None = None
    scores: Scores | None = None
    """Of the distributions that tokens were drafted from: verification stops after the first level where one is not finite."""


class Step(NamedTuple):
    """The result of one step of one sequence."""

    path: tuple[int, ...]
    """Accepted nodes, from the root, 0, down."""
    tokens: list[int]
    """Committed: the accepted draft tokens, then the bonus token, which is the next root."""
    logits: Tensor
    """(n + m, V): the target's, after every node and side token; overwritten by the next pass."""
    states: HiddenStates | None
    """The target's hidden states that the drafter reads, rows as in `logits`; overwritten by the next pass."""
    truncated: bool = False
    """Whether the draft ended early, because a distribution was not finite."""


@runtime_checkable
class Drafter(Protocol):
    """Proposes trees of tokens, siblings in rank order."""

    @property
    def max_tokens(self) -> int:
        """Largest proposal: nodes, root included, and side tokens."""

    @property
    def sampled(self) -> bool:
        """Whether children are sampled from `Proposal.probs`, which decides which verification rules apply."""

    @property
    def requested_states(self) -> RequestedStates:
        """Hidden states of the target that the drafter reads."""

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        """Begin a sequence whose last token is the root.

        Args:
            sequence: its number.
            tokens: all of its tokens, at least one.
            states: the target's at the token before the root, or with `RequestedStates.all_tokens` at all tokens before
                it; None if there are none, or the drafter reads no states.
        """

    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:
        """Return a draft below the root of each sequence, sampled with its generator."""

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move each sequence to its new root, the last token of its step."""

    def end(self, sequence: int) -> None:
        """Free a sequence. It may have been interrupted anywhere, `begin` included."""


CACHED_TREES = 256
CACHED_PASSES = 64
"""Fewer than trees, because the mask of a pass takes more memory."""


@lru_cache(maxsize=CACHED_TREES)
def intern_tree(parents: tuple[int, ...]) -> TokenTree:
    """Return the tree with these parents, the same object for recent parents, so that its masks are reused."""
    return TokenTree(parents)


@lru_cache(maxsize=CACHED_TREES)
def intern_chain(length: int) -> TokenTree:
    """Return the chain of `length` draft tokens, the same object each time.

    >>> intern_chain(2) is intern_chain(2)
    True
    """
    return intern_tree(tuple(range(-1, length)))


ROOT_ONLY = intern_chain(0)
"""The tree that drafts nothing."""
