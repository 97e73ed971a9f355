"""Seconds for a whole profile, and what they are spent on."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from treeopt.profiler.journal import Journal

SPENT = "spent "
"""Before a part's name: the journal's entries of seconds that were spent on it."""
NowS = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Slice:
    """Seconds until some measuring has to stop."""

    now_s: NowS
    end_s: float

    @property
    def left_s(self) -> float:
        """What is left of it; infinite where nothing limits it."""
        return self.end_s - self.now_s()

    def over(self) -> bool:
        """Return whether nothing is left."""
        return self.left_s <= 0

    def part(self, share: float) -> "Slice":
        """Return a slice that ends after a share of what is left."""
        return Slice(self.now_s, self.now_s() + share * max(0.0, self.left_s))


UNLIMITED = Slice(time.monotonic, math.inf)


class Budget:
    """Seconds for one profile, of which earlier runs that were interrupted have spent some.

    Args:
        seconds: for everything; infinite for a fixed amount of measuring.
        journal: where it is kept what they are spent on.
        now_s: a clock that never goes back.
        started_s: when this run began, by that clock; what has gone since is loading.
    """

    def __init__(
        self, seconds: float, journal: Journal, *, now_s: NowS = time.monotonic, started_s: float | None = None
    ) -> None:
        self.seconds = seconds
        self._journal, self._now_s = journal, now_s
        started_s = now_s() if started_s is None else started_s
        self._end_s = started_s + seconds - sum(self.spent_s.values())
        journal.append(SPENT + "loading", 0, (now_s() - started_s,))

    @property
    def whole(self) -> Slice:
        """All that is left."""
        return Slice(self._now_s, self._end_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.whole.left_s

    @property
    def spent_s(self) -> dict[str, float]:
        """Seconds by what they were spent on, in this run and those before, in the order that it began."""
        kinds = [kind for kind in self._journal.kinds() if kind.startswith(SPENT)]
        return {kind.removeprefix(SPENT): sum(self._journal.samples(kind)[0]) for kind in kinds}

    def slice(self, seconds: float) -> Slice:
        """Return so many seconds from now on, at most what is left."""
        return Slice(self._now_s, min(self._end_s, self._now_s() + seconds))

    @contextmanager
    def spending(self, part: str) -> Iterator[None]:
        """Count the seconds of a block, also of one that is interrupted."""
        start_s = self._now_s()
        try:
            yield
        finally:
            self._journal.append(SPENT + part, 0, (self._now_s() - start_s,))
