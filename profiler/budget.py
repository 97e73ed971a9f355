"""The time budget of a profile, and the seconds spent on each part."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from treeopt.profiler.checkpoint import Checkpoint

SPENT = "spent "
"""Prefix of the checkpoint's entries of seconds spent on a part."""
NowS = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which a measurement has to stop."""

    now_s: NowS
    end_s: float

    @property
    def left_s(self) -> float:
        """Negative after the deadline, infinite without one."""
        return self.end_s - self.now_s()

    def over(self) -> bool:
        return self.left_s <= 0

    def part(self, fraction: float) -> "Deadline":
        """Return the deadline after a fraction of the time left."""
        return Deadline(self.now_s, self.now_s() + fraction * max(0.0, self.left_s))

    def split(self, items: Sequence[T]) -> Iterator[tuple[T, "Deadline"]]:
        """Yield each item with its own deadline: equal shares of the time, of which an item leaves what it does not use."""
        for number, item in enumerate(items):
            yield item, self.part(1 / (len(items) - number))


NO_DEADLINE = Deadline(time.monotonic, math.inf)


class Budget:
    """Seconds for one profile, interrupted runs included, from the moment when its models are loaded.

    Args:
        seconds: for everything.
        checkpoint: where the seconds spent are stored.
        now_s: a monotonic clock.
    """

    def __init__(self, seconds: float, checkpoint: Checkpoint, *, now_s: NowS = time.monotonic) -> None:
        self.seconds = seconds
        self._checkpoint, self._now_s = checkpoint, now_s
        self._end_s = now_s() + seconds - sum(self.spent_s.values())

    @property
    def deadline(self) -> Deadline:
        """The end of the budget."""
        return Deadline(self._now_s, self._end_s)

    @property
    def left_s(self) -> float:
        return self.deadline.left_s

    @property
    def spent_s(self) -> dict[str, float]:
        """Seconds by part, over all runs."""
        kinds = [kind for kind in self._checkpoint.kinds() if kind.startswith(SPENT)]
        return {kind.removeprefix(SPENT): sum(self._checkpoint.samples(kind)[0]) for kind in kinds}

    def within(self, seconds: float) -> Deadline:
        """Return the deadline in `seconds`, or the end of the budget if that is earlier."""
        return Deadline(self._now_s, min(self._end_s, self._now_s() + seconds))

    @contextmanager
    def spending(self, part: str) -> Iterator[None]:
        """Count the seconds of a block, also if it is interrupted."""
        start_s = self._now_s()
        try:
            yield
        finally:
            self._checkpoint.append(SPENT + part, 0, (self._now_s() - start_s,))
