"""Plain decoding as a drafter: a step proposes the root alone, and yields the one token that the target samples."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step
from treeopt.runtime.models.model import NO_STATES, HiddenStates
from treeopt.trees import TokenTree


class PlainDrafter:
    """Drafts nothing."""

    max_tokens = 1
    sampled = False
    requested_states = NO_STATES
    tree = ROOT_ONLY

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes == 1  # the decoder checks trees

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self._roots[sequence] = tokens[-1]

    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return [Proposal(self.tree, torch.full((1,), self._roots[sequence])) for sequence in sequences]

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            self._roots[sequence] = step.tokens[-1]

    def skip(self, sequence: int, step: Step) -> None:
        """Move a sequence to its new root after a step of another drafter."""
        self.accept([sequence], [step])

    def end(self, sequence: int) -> None:
        self._roots.pop(sequence, None)
