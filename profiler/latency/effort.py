"""How much is timed: so many rounds, or as many as a time budget allows."""

from collections.abc import Callable
from typing import Protocol

ROUNDS_PER_BLOCK = 5
EXTRA_POINTS = 8
"""Token counts added to a curve where it bends, where no time budget says how many."""
PILOT_SHARE = 1 / 3
"""Of a time budget, what finding the bends may take."""
LEAST_ERROR = 0.01
"""Under a time budget: straight lines that are surer than this need no count between."""


class Effort(Protocol):
    """When to go on and when to stop."""

    least_error: float
    """A straight line that is off by less, relative to the time, is good enough."""
    extra_rounds: int
    """How many rounds there may be beside, to time again what other programs disturbed."""

    def wants_point(self, added: int, share: float) -> bool:
        """Return whether a curve is to get another count before the rounds begin.

        Args:
            added: counts that it got so far.
            share: of the time for that, what may have been spent when this curve is done.
        """

    def next_rounds(self, rounds: int) -> int | None:
        """Return how many rounds to have next, after so many; None to stop."""

    @property
    def adds_points(self) -> bool:
        """Whether counts are added between the rounds too."""


class FixedEffort:
    """So many rounds and added counts, however long they take."""

    least_error = 0.0
    adds_points = False

    def __init__(self, rounds: int) -> None:
        self._rounds = self.extra_rounds = rounds

    def wants_point(self, added: int, share: float) -> bool:  # noqa: ARG002
        return added < EXTRA_POINTS

    def next_rounds(self, rounds: int) -> int | None:
        return min(rounds + ROUNDS_PER_BLOCK, self._rounds) if rounds < self._rounds else None


class TimeBudget:
    """As much as so many seconds allow, one block of rounds at least.

    Args:
        seconds: the budget.
        spent_s: returns what has been spent.
    """

    least_error = LEAST_ERROR
    extra_rounds = 0
    adds_points = True

    def __init__(self, seconds: float, spent_s: Callable[[], float]) -> None:
        self._seconds = seconds
        self._spent_s = spent_s

    def wants_point(self, added: int, share: float) -> bool:  # noqa: ARG002
        return self._spent_s() < share * PILOT_SHARE * self._seconds

    def next_rounds(self, rounds: int) -> int | None:
        return rounds + ROUNDS_PER_BLOCK if rounds == 0 or self._spent_s() < self._seconds else None
