"""When the draft model reads the text while nothing is drafted: as often as a share of the time allows."""

from collections.abc import Callable, Sequence

from torch import Tensor

from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import surprise
from treeopt.adaptation.missed import MissedSteps
from treeopt.arrays import Float64
from treeopt.runtime.decoding.observer import Steered

READING_SHARE, SPARING_SHARE = 0.006, 0.003
"""Of the time that decoding takes, what reading may take; and where there is less to gain by it."""
LEAST_READING = 16
"""Tokens that are worth a reading."""
MOST_MISSED, MOST_MISSED_NUMBERS = 24, 2**24
"""Tokens that it tells of at most, and numbers of distributions that are remembered for it."""
DEARER_READING = 1.25
"""By which factor a reading may be dearer than the one before: more is an interruption, and says nothing of the next."""
HINT, HINTED_PAUSE = 2.0, 0.25
"""After a reading that is so many standard errors off the next one comes soon: after such a share of the usual pause."""


class Readings:
    """The draft model's readings, and what they took.

    Args:
        usual_s: seconds of a reading, before one was made.
        now_s: the clock.
    """

    def __init__(self, usual_s: float, now_s: Callable[[], float]) -> None:
        self._usual_s, self._now_s = usual_s, now_s
        self._last_s = self._pause_s = 0.0
        self.taken_s = 0.0

    def attach(self, decoder: Steered) -> None:
        """Take the decoder whose draft model reads."""
        most = min(MOST_MISSED, max(LEAST_READING, MOST_MISSED_NUMBERS // decoder.target.config.vocabulary))
        self._missed = MissedSteps(decoder, most)

    def note(self, text: int, before: Sequence[int], token: int, logits: Tensor, node: int) -> None:
        """Remember a step that drafted nothing; see `MissedSteps.note`."""
        self._missed.note(text, before, token, logits, node)

    def begin(self, decoding_s: float) -> None:
        """Forget what was noted, and read as soon as there is enough."""
        self._last_s, self._pause_s = decoding_s, 0.0
        self._missed.forget()

    def sooner(self) -> None:
        """Have the next reading come sooner."""
        self._pause_s *= HINTED_PAUSE

    def read(self, expected: Float64, decoding_s: float, share: float) -> Outcomes:
        """Return what the draft model would have been worth, of no step where it is not time to have it read.

        Args:
            expected: (D, K), how often each rank is expected to be accepted once tried.
            decoding_s: seconds of all steps so far.
            share: of the time from now on, what reading may take.
        """
        depths, ranks = expected.shape
        if decoding_s - self._last_s < self._pause_s or len(self._missed) < LEAST_READING:
            return Outcomes.none(depths, ranks)
        start_s = self._now_s()
        found = self._missed.outcomes(depths, ranks)
        took_s = self._now_s() - start_s
        self.taken_s += took_s
        self._usual_s = min(took_s, DEARER_READING * self._usual_s)
        self._last_s, self._pause_s = decoding_s, self._usual_s / share
        if surprise(found, expected) > HINT:
            self.sooner()
        return found
