"""How much of the processors other programs use.

Times taken beside them are too long, and no statistics over the samples can tell that from a slow machine.
"""

import time
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

LOOK_S = 0.5
"""The shortest time over which use is told: systems count processor time in ticks, mostly of 10 ms."""
TOLERATED = 0.1
"""Of a processor for every thread that measures: background noise, below what times show."""
MOST_TOLERATED = 0.25
"""Of a processor, however many threads: all wait for the one that was interrupted."""


@dataclass(frozen=True, slots=True)
class Load:
    """What other programs used of the processors that this process may run on."""

    others: float
    """Processors' worth of time, on average: 1.5 is one processor and a half."""
    processors: int
    """As the system counts them, hardware threads one by one."""
    cores: int
    """As many as can compute without sharing a core."""

    @property
    def share(self) -> float:
        """Of all processors."""
        return self.others / self.processors

    def disturbs(self, threads: int) -> bool:
        """Return whether so many threads that compute at once are kept from their cores."""
        spare = max(0, self.cores - threads)
        return self.others > spare + min(TOLERATED * threads, MOST_TOLERATED)


class LoadReader(Protocol):
    """Says what other programs use, span by span."""

    def others(self) -> Load | None:
        """Return the load since the last that was returned; None while that is too short, or where nobody knows."""
        ...


@dataclass(frozen=True, slots=True)
class Ticks:
    """What the system has counted up to now, in seconds summed over the processors of this process."""

    now_s: float
    counted_s: float
    """Busy and idle."""
    idle_s: float
    own_s: float
    """Used by this process, its children left out."""
    processors: int
    cores: int


class ProcessorTimes:
    """The operating system's count of processor time, less what this process used; time that a host took counts too."""

    def __init__(self, least_s: float = LOOK_S) -> None:
        self._least_s = least_s
        self._before = ticks()

    def others(self) -> Load | None:
        """Return the load since the last one, after at least half a second."""
        if time.monotonic() - self._before.now_s < self._least_s:
            return None
        before, self._before = self._before, ticks()
        return load_between(before, self._before)


def load_between(before: Ticks, after: Ticks) -> Load | None:
    """Return the load between two counts; None where the system does not really count, as some sandboxes do not."""
    span_s = (after.now_s - before.now_s) * after.processors
    if after.processors != before.processors or after.counted_s - before.counted_s < span_s / 2:
        return None
    busy_s = span_s - (after.idle_s - before.idle_s) - (after.own_s - before.own_s)
    others = min(max(0.0, busy_s / span_s), 1.0) * after.processors
    return Load(others, after.processors, after.cores)


def ticks() -> Ticks:
    """Return the counts of now."""
    import psutil

    every = psutil.cpu_times(percpu=True)
    usable, cores = _processors(len(every))
    times = [every[number] for number in usable]
    return Ticks(
        now_s=time.monotonic(),
        counted_s=sum(sum(each) for each in times),
        idle_s=sum(each.idle + getattr(each, "iowait", 0.0) for each in times),
        own_s=time.process_time(),
        processors=len(usable),
        cores=cores,
    )


@cache
def _processors(count: int) -> tuple[list[int], int]:
    """Return which of so many processors this process may use, all where the system does not say, and their cores."""
    import psutil

    try:
        usable = sorted(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):
        usable = []
    if not usable or usable[-1] >= count:
        usable = list(range(count))
    physical = psutil.cpu_count(logical=False) or count
    return usable, max(1, min(len(usable), round(len(usable) * physical / count)))


def threads_on(device: torch.device) -> int:
    """Return how many threads compute at once where times are taken: of a GPU's passes the host only starts them."""
    return torch.get_num_threads() if device.type == "cpu" else 1
