"""What drafters that are heads on the target keep of a text: its root, and the hidden state that it was sampled from."""

from collections.abc import Sequence

from torch import Tensor

from treeopt.runtime.drafters.drafter import States, Step


class HeadTexts:
    """The root and the target's last hidden state before it, (1, hidden), of each text by its number."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[int, Tensor | None]] = {}

    def __getitem__(self, text: int) -> tuple[int, Tensor | None]:
        """Return both; no hidden state where the root stands alone."""
        return self._texts[text]

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        """See `Drafter`."""
        self._texts[text] = tokens[-1], None if states is None else states.last

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """Move on to new roots: each was sampled from the hidden state of the last accepted node."""
        for text, step in zip(texts, steps, strict=True):
            assert step.states is not None  # heads want them
            self._texts[text] = step.tokens[-1], step.states.row(step.path[-1]).last

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.pop(text, None)
