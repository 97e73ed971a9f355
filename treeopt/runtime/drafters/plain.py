"""Plain decoding: nothing is drafted, so a step yields the one token that the target samples."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step
from treeopt.runtime.models.model import NO_STATES, HiddenStates
from treeopt.trees import TokenTree


class PlainDrafter:
    """Proposes the root alone; the other methods are those of `StaticTreeDrafter`."""

    max_tokens = 1
    sampled = False
    requested_states = NO_STATES
    tree = ROOT_ONLY

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self._roots[sequence] = tokens[-1]

    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return [Proposal(ROOT_ONLY, torch.tensor([self._roots[sequence]])) for sequence in sequences]

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            self.skip(sequence, step)

    def skip(self, sequence: int, step: Step) -> None:
        self._roots[sequence] = step.tokens[-1]

    def end(self, sequence: int) -> None:
        self._roots.pop(sequence, None)

    def reserve(self, sequences: int) -> None:
        pass

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes == 1  # the decoder checks trees
