"""What re-calibration itself takes beside decoding, and may take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OWN_SHARE = 0.01
"""Of the time that decoding takes, after what share comparing has to wait, and after twice of it looking."""
HEAD_START_S = 0.03
"""And so much besides, anew where something changed for good: what finding out what is right then takes."""
REPLAY_SHARE, REPLAY_START_S = 0.004, 0.02
"""Likewise, with a head start of its own, what walking prompt lookup along the text may take."""


class OwnTime:
    """Seconds of decoding, and of what re-calibration does meanwhile.

    Args:
        now_s: the clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.decoding_s = self.own_s = self.replay_s = 0.0
        """Of all steps; of looking, solving and changing; of that, of walking prompt lookup along the text."""
        self._start_s = HEAD_START_S

    def changed(self) -> None:
        """Have a head start anew: something changed for good, and what is right now has to be found out."""
        self._start_s = max(self._start_s, self._spent_s - OWN_SHARE * self.decoding_s + HEAD_START_S)

    @contextmanager
    def counted(self, reading_s: Callable[[], float]) -> Iterator[None]:
        """Count what is done meanwhile, the draft model's reading left out, whose seconds so far are told."""
        start_s, read_s = self._now_s(), reading_s()
        yield
        self.own_s += self._now_s() - start_s - (reading_s() - read_s)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Count what is done meanwhile as walking along the text."""
        start_s = self._now_s()
        yield
        self.replay_s += self._now_s() - start_s

    @property
    def may_look(self) -> bool:
        """Whether there is time to look at what was counted."""
        return self._spent_s <= 2 * (self._start_s + OWN_SHARE * self.decoding_s)

    @property
    def may_solve(self) -> bool:
        """Whether there is time to solve and to compare."""
        return self._spent_s <= self._start_s + OWN_SHARE * self.decoding_s

    @property
    def may_replay(self) -> bool:
        """Whether there is time to walk along the text."""
        return self.replay_s <= REPLAY_START_S + REPLAY_SHARE * self.decoding_s

    @property
    def _spent_s(self) -> float:
        return self.own_s - self.replay_s
