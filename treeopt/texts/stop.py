"""Where a text ends: at tokens, or at sequences of tokens, that were asked to end it."""

from collections.abc import Iterable, Sequence

from treeopt.errors import InvalidValueError


class Stopping:
    """Looks for the first of some sequences in tokens that come a few at a time.

    >>> Stopping([(1, 2)], vocabulary=3).length([0, 1]), Stopping([(1, 2)], vocabulary=3).length([1, 2, 0])
    (None, 2)

    Raises InvalidValueError for an empty sequence or tokens outside the vocabulary.
    """

    def __init__(self, sequences: Iterable[Sequence[int]], *, vocabulary: int) -> None:
        self._sequences = [list(sequence) for sequence in sequences]
        for sequence in self._sequences:
            if not sequence or not all(0 <= token < vocabulary for token in sequence):
                raise InvalidValueError(
                    f"stop: expected sequences of one or more tokens from 0 to {vocabulary - 1}. Got {sequence}.",
                    field="stop",
                )
        self._lasts = {sequence[-1] for sequence in self._sequences}
        self._longest = max(map(len, self._sequences), default=0)
        self._text: list[int] = []

    def length(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the next tokens belong to the text when a sequence ends among them, else None."""
        for count, token in enumerate(tokens, start=1):
            self._text.append(token)
            if token in self._lasts and any(self._text[-len(sequence) :] == sequence for sequence in self._sequences):
                return count
        del self._text[: -self._longest or None]
        return None


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
