"""Stopping criteria of a generated sequence: a number of new tokens, and stop sequences."""

from collections.abc import Iterable, Sequence

from treeopt.errors import InvalidValueError


class StoppingCriteria:
    """Ends a sequence after `max_new_tokens`, or after the first stop sequence.

    Raises InvalidValueError for an empty stop sequence or tokens outside the vocabulary.

    >>> criteria = StoppingCriteria(8, [(1, 2)], vocabulary=3)
    >>> criteria.count([0, 1]), criteria.count([2, 0]), criteria.reached
    (2, 1, True)
    """

    def __init__(self, max_new_tokens: int, stop: Iterable[Sequence[int]], *, vocabulary: int) -> None:
        self._remaining = max_new_tokens
        self._stop = [list(sequence) for sequence in stop]
        for sequence in self._stop:
            if not sequence or not all(0 <= token < vocabulary for token in sequence):
                raise InvalidValueError(
                    f"stop: expected sequences of one or more tokens from 0 to {vocabulary - 1}. Got {sequence}.",
                    field="stop",
                )
        self._last_tokens = {sequence[-1] for sequence in self._stop}
        self._longest = max(map(len, self._stop), default=0)
        self._tail: list[int] = []

    @property
    def reached(self) -> bool:
        """Whether the sequence has ended."""
        return self._remaining <= 0

    def count(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of the next step belong to the sequence."""
        for count, token in enumerate(tokens[: self._remaining], start=1):
            self._tail.append(token)
            if token in self._last_tokens and any(self._tail[-len(stop) :] == stop for stop in self._stop):
                self._remaining = 0
                return count
        del self._tail[: -self._longest or None]
        count = min(len(tokens), self._remaining)
        self._remaining -= count
        return count
