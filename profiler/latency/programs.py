"""Which other programs compute on this machine, and waiting until none does."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from treeopt.profiler.latency.busy import LOOK_S, Load, load_between, ticks

LEAST_NAMED = 0.05
"""Of a processor: programs that use less are not named."""
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Program:
    """Another program that computes."""

    name: str
    pid: int
    processors: float
    """What it used of one processor: 2 is two whole ones."""

    def __str__(self) -> str:
        name = "".join(character if character.isprintable() else "?" for character in self.name)
        return f"{name} (pid {self.pid}, {self.processors:.0%})"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at the machine showed."""

    load: Load | None
    """None where nobody knows."""
    programs: tuple[Program, ...]
    """Those that can be seen from here, the largest use first."""

    def disturbs(self, threads: int) -> bool:
        """Return whether times of so many threads would be too long."""
        return self.load is not None and self.load.disturbs(threads)

    def __str__(self) -> str:
        """Say in one line what other programs use: `95% of 2 processors: python (pid 123, 100%), cc1 (pid 77, 90%)`."""
        if self.load is None:
            return "an unknown share of the processors"
        named = [str(each) for each in self.programs[:MOST_NAMED]]
        if more := len(self.programs) - len(named):
            named.append(f"{more} more")
        processors = "1 processor" if self.load.processors == 1 else f"{self.load.processors} processors"
        return f"{self.load.share:.0%} of {processors}: {', '.join(named) or 'none seen from here'}"


def look(root_pid: int | None = None, *, sleep: Callable[[float], object] = time.sleep) -> Sight:
    """Return what other programs use over half a second.

    Args:
        root_pid: the process that is not another, with all that it started; by default this one.
        sleep: waits; Ctrl-C ends it.
    """
    own = _tree(os.getpid() if root_pid is None else root_pid)
    before, used_before = ticks(), _used()
    sleep(LOOK_S)
    after, used = ticks(), _used()
    span_s = after.now_s - before.now_s
    # a process that ended or began meanwhile is left out; pid 0 is the system's own idling on some
    rates = {key: (seconds - used_before[key]) / span_s for key, seconds in used.items() if key in used_before}
    load = load_between(before, after)
    if load is not None:
        started = sum(rate for (pid, _), rate in rates.items() if pid in own - {os.getpid()})
        load = Load(max(0.0, load.others - started), load.processors, load.cores)
    programs = [Program(name, pid, rate) for (pid, name), rate in rates.items() if pid not in own | {0}]
    named = [each for each in programs if each.processors >= LEAST_NAMED]
    return Sight(load, tuple(sorted(named, key=lambda each: -each.processors)))


def _tree(root_pid: int) -> set[int]:
    """Return the process ids of a process and all that it started."""
    import psutil

    try:
        return {root_pid, os.getpid(), *(child.pid for child in psutil.Process(root_pid).children(recursive=True))}
    except psutil.Error:
        return {root_pid, os.getpid()}


def _used() -> dict[tuple[int, str], float]:
    """Return the seconds that every process has computed for, as far as this user may know."""
    import psutil

    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            found[process.pid, process.info["name"] or "?"] = times.user + times.system
    return found


def wait_for_quiet(
    see: Callable[[], Sight],
    threads: int,
    wait_s: float,
    tell: Callable[[Sight, float], object],
    now_s: Callable[[], float] = time.monotonic,
) -> Sight:
    """Look again and again until nothing disturbs so many threads, or the time is over; return what was seen last.

    Args:
        see: looks at the machine, which takes a while.
        threads: that are to compute undisturbed.
        wait_s: how long to wait at most.
        tell: called with what was seen and the seconds left, before every further look.
        now_s: the clock.
    """
    until_s = now_s() + wait_s
    sight = see()
    while sight.disturbs(threads) and (left_s := until_s - now_s()) > 0:
        tell(sight, left_s)
        sight = see()
    return sight
