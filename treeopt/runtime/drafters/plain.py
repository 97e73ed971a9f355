"""Plain decoding as a drafter: a step proposes the root alone, and yields the one token that the target samples."""

from collections.abc import Sequence

from treeopt.runtime.drafters.drafter import ROOT_ONLY, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees import TokenTree


class PlainSequence:
    """The root of a sequence, which is never ready to draft."""

    ready = False
    root = -1

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self.root = tokens[-1]

    def accept(self, step: Step) -> None:
        self.root = step.tokens[-1]


class PlainDrafter(SequenceDrafter[PlainSequence]):
    """Drafts nothing."""

    max_tokens = 1
    tree = ROOT_ONLY

    def __init__(self) -> None:
        super().__init__(lambda count: [PlainSequence() for _ in range(count)])

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes == 1  # the decoder checks trees

    def skip(self, sequence: int, step: Step) -> None:
        """Move a sequence to its new root after a step of another drafter."""
        self.accept([sequence], [step])
