"""How much of a text is still to come."""

from collections.abc import Sequence

from treeopt.texts.stop import Stopping


class Ending:
    """Ends a text after so many new tokens, or where it is stopped.

    Args:
        left: most new tokens.
        stopping: looks for what ends it before.
    """

    def __init__(self, left: int, stopping: Stopping) -> None:
        self._left = left
        self._stopping = stopping

    @property
    def reached(self) -> bool:
        """Whether the text has ended."""
        return self._left <= 0

    def count(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens of the next step belong to the text."""
        taken = tokens[: self._left]
        end = self._stopping.length(taken)
        self._left = 0 if end is not None else self._left - len(taken)
        return len(taken) if end is None else end
