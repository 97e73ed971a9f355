"""What drafters that are heads on the target keep of a text: its root, and the hidden state that it was sampled from."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.models.model import States, joined


class HeadTexts:
    """The root and the target's last hidden state before it, (1, hidden), of each text by its number."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[int, Tensor | None]] = {}

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        self._texts[text] = tokens[-1], None if states is None else states.last

    def drafted(self, texts: Sequence[int], draft: Callable[[list[int], Tensor], list[Proposal]]) -> list[Proposal]:
        """Return the drafts of some texts, all by one call; of a text that is its root alone, the root.

        Args:
            texts: their numbers.
            draft: from n roots and the hidden states before them, (n, hidden), to their drafts.
        """
        at = [self._texts[text] for text in texts]
        ready = [(root, hidden) for root, hidden in at if hidden is not None]
        found = iter(draft([root for root, _ in ready], joined([hidden for _, hidden in ready])) if ready else [])
        return [Proposal(ROOT_ALONE, torch.tensor([root])) if hidden is None else next(found) for root, hidden in at]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """Move on to new roots: each was sampled from the hidden state of the last accepted node."""
        for text, step in zip(texts, steps, strict=True):
            assert step.states is not None  # heads want them
            self._texts[text] = step.tokens[-1], step.states.row(step.path[-1]).last

    def end(self, text: int) -> None:
        self._texts.pop(text, None)
