"""Plain decoding as a drafter: the root alone, so that a step yields the one token that the target samples."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.models.model import NOTHING, States
from treeopt.trees import TokenTree


class PlainDrafter:
    """Drafts nothing."""

    max_tokens = 1
    sampled = False
    wants = NOTHING
    tree = ROOT_ALONE

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    def change_tree(self, tree: TokenTree) -> None:
        """Take another tree of the root alone."""
        assert tree.nodes == 1  # the decoder checks trees

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:  # noqa: ARG002
        self._roots[text] = tokens[-1]

    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return [Proposal(self.tree, torch.full((1,), self._roots[text])) for text in texts]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._roots[text] = step.tokens[-1]

    def miss(self, text: int, step: Step) -> None:
        """Move on in a text where something else drafted."""
        self.accept([text], [step])

    def end(self, text: int) -> None:
        self._roots.pop(text, None)
