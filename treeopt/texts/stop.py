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
