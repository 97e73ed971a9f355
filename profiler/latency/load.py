"""The load that other programs put on the processors, and which programs those are.

Times taken under load are too long, and no statistics of the samples can tell that from a slow machine.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

LOAD_WINDOW_S = 0.5
"""The shortest time over which load is measured: systems count processor time in ticks, mostly of 10 ms."""
TOLERATED = 0.1
"""Processors of load per measuring thread that do not show in times."""
MAX_TOLERATED = 0.25
"""Processors of load, however many threads: all wait for the one that was interrupted."""
MIN_NAMED = 0.05
"""Processors; programs that use less are not named."""
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What other programs used of the processors that this process may run on."""

    used: float
    """Processors, on average: 1.5 is one processor and a half."""
    processors: int
    """Hardware threads."""
    cores: int

    @property
    def share(self) -> float:
        return self.used / self.processors

    def disturbs(self, threads: int) -> bool:
        """Return whether the load takes cores from `threads` threads that compute at the same time."""
        spare = max(0, self.cores - threads)
        return self.used > spare + min(TOLERATED * threads, MAX_TOLERATED)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The system's counters, in seconds summed over the processors of this process."""

    now_s: float
    counted_s: float
    """Busy and idle."""
    idle_s: float
    own_s: float
    """Used by this process without its children."""
    processors: int
    cores: int


class CpuLoadReader:
    """Reads the load from the system's processor times; time stolen by a hypervisor counts as load."""

    def __init__(self) -> None:
        self._before = read_cpu_times()

    def read(self) -> Load | None:
        """Return the load since the last one; None if that is too recent or the load is unknown."""
        if time.monotonic() - self._before.now_s < LOAD_WINDOW_S:
            return None
        before, self._before = self._before, read_cpu_times()
        return load_between(before, self._before)


def load_between(before: CpuTimes, after: CpuTimes) -> Load | None:
    """Return the load between two readings; None if the system does not count, as in some sandboxes."""
    span_s = (after.now_s - before.now_s) * after.processors
    if after.processors != before.processors or after.counted_s - before.counted_s < span_s / 2:
        return None
    busy_s = span_s - (after.idle_s - before.idle_s) - (after.own_s - before.own_s)
    used = min(max(0.0, busy_s / span_s), 1.0) * after.processors
    return Load(used, after.processors, after.cores)


def read_cpu_times() -> CpuTimes:
    import psutil

    all_times = psutil.cpu_times(percpu=True)
    usable, cores = _usable_processors(len(all_times))
    times = [all_times[number] for number in usable]
    return CpuTimes(
        now_s=time.monotonic(),
        counted_s=sum(sum(processor) for processor in times),
        idle_s=sum(processor.idle + getattr(processor, "iowait", 0.0) for processor in times),
        own_s=time.process_time(),
        processors=len(usable),
        cores=cores,
    )


@cache
def _usable_processors(count: int) -> tuple[list[int], int]:
    """Return the numbers of the processors that this process may use, by default all, and the number of their cores."""
    import psutil

    try:
        usable = sorted(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):
        usable = []
    if not usable or usable[-1] >= count:
        usable = list(range(count))
    physical = psutil.cpu_count(logical=False) or count
    return usable, max(1, min(len(usable), round(len(usable) * physical / count)))


def timing_threads(device: torch.device) -> int:
    """Return the threads that compute at the same time in a timed call: on a GPU the host only launches kernels."""
    return torch.get_num_threads() if device.type == "cpu" else 1


@dataclass(frozen=True, slots=True)
class Program:
    """Another program that computes."""

    name: str
    pid: int
    processors: float
    """Processors that it used: 2 is two whole ones."""

    def __str__(self) -> str:
        name = "".join(character if character.isprintable() else "?" for character in self.name)
        return f"{name} (pid {self.pid}, {100 * self.processors:.0f} %)"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The load of other programs over half a second."""

    load: Load | None
    """None if unknown."""
    programs: tuple[Program, ...]
    """The visible ones, in descending order of use."""

    def disturbs(self, threads: int) -> bool:
        return self.load is not None and self.load.disturbs(threads)

    def __str__(self) -> str:
        """Return one line such as `95 % of 2 processors: python (pid 123, 100 %), cc1 (pid 77, 90 %)`."""
        if self.load is None:
            return "an unknown share of the processors"
        names = [str(program) for program in self.programs[:MAX_NAMED]]
        if more := len(self.programs) - len(names):
            names.append(f"{more} more")
        processors = "1 processor" if self.load.processors == 1 else f"{self.load.processors} processors"
        return f"{100 * self.load.share:.0f} % of {processors}: {', '.join(names) or 'none seen from here'}"


def report_load(root_pid: int | None = None, *, sleep: Callable[[float], object] = time.sleep) -> LoadReport:
    """Return what other programs use over half a second.

    Args:
        root_pid: the process that does not count, with its descendants; by default this one.
        sleep: waits; Ctrl-C ends it.
    """
    own_pids = _process_tree(os.getpid() if root_pid is None else root_pid)
    before, used_before = read_cpu_times(), _process_seconds()
    sleep(LOAD_WINDOW_S)
    after, used_after = read_cpu_times(), _process_seconds()
    span_s = after.now_s - before.now_s
    # processes that started or ended meanwhile are left out; on some systems pid 0 is the idle process
    rates = {key: (seconds - used_before[key]) / span_s for key, seconds in used_after.items() if key in used_before}
    load = load_between(before, after)
    if load is not None:
        descendants = sum(rate for (pid, _), rate in rates.items() if pid in own_pids - {os.getpid()})
        load = Load(max(0.0, load.used - descendants), load.processors, load.cores)
    programs = [Program(name, pid, rate) for (pid, name), rate in rates.items() if pid not in own_pids | {0}]
    named = [program for program in programs if program.processors >= MIN_NAMED]
    return LoadReport(load, tuple(sorted(named, key=lambda program: -program.processors)))


def _process_tree(root_pid: int) -> set[int]:
    import psutil

    try:
        return {root_pid, os.getpid(), *(child.pid for child in psutil.Process(root_pid).children(recursive=True))}
    except psutil.Error:
        return {root_pid, os.getpid()}


def _process_seconds() -> dict[tuple[int, str], float]:
    import psutil

    seconds = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if (times := process.info["cpu_times"]) is not None:
            seconds[process.pid, process.info["name"] or "?"] = times.user + times.system
    return seconds


def wait_until_idle(
    read_report: Callable[[], LoadReport],
    threads: int,
    wait_s: float,
    on_wait: Callable[[LoadReport, float], object],
    now_s: Callable[[], float] = time.monotonic,
) -> LoadReport:
    """Read reports until the load no longer disturbs `threads` threads, or `wait_s` are over; return the last one.

    Args:
        read_report: reads the load, which takes a while.
        threads: that are to compute undisturbed.
        wait_s: upper bound.
        on_wait: called with the report and the seconds left before every further report.
        now_s: the clock.
    """
    until_s = now_s() + wait_s
    report = read_report()
    while report.disturbs(threads) and (left_s := until_s - now_s()) > 0:
        on_wait(report, left_s)
        report = read_report()
    return report
