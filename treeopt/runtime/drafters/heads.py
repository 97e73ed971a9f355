"""What drafters with heads on the target share: the states that they draft from, and trees from marginal distributions."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import HiddenStates, RequestedStates, concatenate
from treeopt.trees import TokenTree


class HeadSequence:
    """The root of a sequence, and the target's last hidden state before it."""

    root = -1
    hidden: Tensor | None = None
    """(1, hidden); None for a sequence of one token."""

    @property
    def ready(self) -> bool:
        return self.hidden is not None

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self.root, self.hidden = tokens[-1], None if states is None else states.last

    def accept(self, step: Step) -> None:
        """Move to the new root, which was sampled from the hidden state of the last accepted node."""
        assert step.states is not None  # heads request them
        self.root, self.hidden = step.tokens[-1], step.states.row(step.path[-1]).last


class HeadDrafter(SequenceDrafter[HeadSequence]):
    """Drafts from the root and the target's last hidden state before it; subclasses define `_draft`."""

    requested_states = RequestedStates(last=True)

    def __init__(self) -> None:
        super().__init__(lambda count: [HeadSequence() for _ in range(count)])

    def _fill(self, states: Sequence[HeadSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        hidden = [state.hidden for state in states if state.hidden is not None]
        return self._draft([state.root for state in states], concatenate(hidden))

    def _draft(self, roots: list[int], hidden: Tensor) -> list[Proposal]:
        """Return the drafts below n roots, given the hidden states before them, (n, hidden)."""
        raise NotImplementedError


class BlockHead(Protocol):
    """A head that predicts several depths at once."""

    @property
    def name(self) -> str:
        """Name in errors and warnings."""

    @property
    def levels(self) -> int:
        """Depths that it predicts."""

    @property
    def tokens(self) -> int:
        """Tokens of the target's vocabulary that it predicts."""

    @property
    def device(self) -> torch.device: ...


FillTree = Callable[[Sequence[int], Tensor], list[Proposal]]
"""From n roots and the logits (n, levels, V) at each depth below them to the filled tree below each root."""


def marginal_filler(head: BlockHead, tree: TokenTree) -> FillTree:
    """Return the function that gives a node of depth d and rank r the r-th most likely token at d.

    Raises InvalidValueError for a tree with more levels than the head predicts, or more children of a node than tokens.
    """
    check_tree(head, tree)
    count = max(1, int(tree.child_counts.max()))  # tokens that are needed at each depth
    indices = torch.from_numpy(((tree.depth[1:] - 1) * count + tree.rank[1:]).astype(np.int64)).to(head.device)
    first_nodes = [level.start for level in tree.levels[:-1]]

    def fill(roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        largest, likeliest = logits.topk(count)
        children = likeliest.flatten(1)[:, indices]
        tokens = torch.cat([children.new_tensor(roots)[:, None], children], 1)
        return [
            Proposal(tree, row, scores=Scores(head.name, scores, first_nodes))
            for row, scores in zip(tokens, largest[:, : tree.max_depth, 0], strict=True)
        ]

    return fill


def check_tree(head: BlockHead, tree: TokenTree) -> None:
    """Raise InvalidValueError for a tree with more levels, or more children of a node, than a head predicts."""
    if tree.max_depth > head.levels:
        raise InvalidValueError(
            f"tree: expected at most {head.levels} levels, the depth of {head.name}. Got {tree.max_depth}."
        )
    check_children("tree", int(tree.child_counts.max()), head.name, head.tokens)


def check_children(argument: str, children: int, name: str, tokens: int) -> None:
    """Raise InvalidValueError, naming the argument, for more children of a node than a head predicts tokens."""
    if children > tokens:
        raise InvalidValueError(
            f"{argument}: expected at most {tokens} children of a node, the vocabulary of {name}. "
            f"Got {children}: take a narrower tree."
        )
