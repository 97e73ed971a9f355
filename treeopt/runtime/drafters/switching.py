"""Plain decoding, and switches between a static tree and another drafter from one step to the next."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import ROOT_ONLY, Drafter, Proposal, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.model import NO_STATES, HiddenStates
from treeopt.trees import TokenTree


class RootSequence:
    """The last committed token of a sequence."""

    ready = False
    root = -1

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self.root = tokens[-1]

    def accept(self, step: Step) -> None:
        self.root = step.tokens[-1]


class PlainDrafter(SequenceDrafter[RootSequence]):
    """Drafts nothing: the static tree of plain decoding is the root alone."""

    max_tokens = 1
    tree = ROOT_ONLY

    def __init__(self) -> None:
        super().__init__(lambda sequences: [RootSequence() for _ in range(sequences)])

    def skip(self, sequence: int, step: Step) -> None:
        self._sequences[sequence].accept(step)

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes == 1  # the decoder checks trees


class SwitchingDrafter:
    """Drafts a static tree, or with another drafter while one is selected.

    The other drafter begins every sequence when it is selected.  The draft model keeps its cache meanwhile, and feeds
    the tokens that it missed, or the whole of a new sequence, when it drafts again.  The tokens of all sequences are
    kept for this.
    """

    requested_states = NO_STATES

    def __init__(self, static: PlainDrafter | StaticTreeDrafter) -> None:
        self._static = static
        self._other: Drafter | None = None
        self._tokens: dict[int, list[int]] = {}
        """Of every sequence that is being decoded."""
        self._unread: set[int] = set()
        """Sequences that the static drafter has not begun."""

    @property
    def max_tokens(self) -> int:
        return max(self._static.max_tokens, 1 if self._other is None else self._other.max_tokens)

    @property
    def sampled(self) -> bool:
        return self._active.sampled

    @property
    def _active(self) -> Drafter:
        return self._static if self._other is None else self._other

    @torch.inference_mode()
    def take(self, other: Drafter | None) -> None:
        """Draft with another drafter from the next step on; None selects the static tree."""
        if self._other is not None and self._other is not other:
            for sequence in self._tokens:
                self._other.end(sequence)
        if other is not None:
            for sequence, tokens in self._tokens.items():
                other.begin(sequence, tokens, None)
        else:
            for sequence in self._unread:
                self._static.begin(sequence, self._tokens[sequence], None)
            self._unread.clear()
        self._other = other

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self._tokens[sequence] = list(tokens)
        if self._other is not None:
            self._unread.add(sequence)
        self._active.begin(sequence, tokens, states)

    def reserve(self, sequences: int) -> None:
        self._static.reserve(sequences)

    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:
        return self._active.propose(sequences, generators)

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            self._tokens[sequence] += step.tokens
            if self._other is not None and sequence not in self._unread:
                self._static.skip(sequence, step)
        self._active.accept(sequences, steps)

    def end(self, sequence: int) -> None:
        self._tokens.pop(sequence, None)
        self._unread.discard(sequence)
        self._static.end(sequence)
        if self._other is not None:
            self._other.end(sequence)
