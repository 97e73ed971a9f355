"""The processes that another one started, and their end."""

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

import psutil

KILLED_S = 30.0
"""Longest wait for killed processes: freeing the memory of a GPU takes seconds."""
PAUSE_S = 0.02


def started_by(pid: int) -> set[psutil.Process]:
    """Return the descendants of the leader of a process group, and what is left of that group; the leader not included.

    Processes whose parent has ended are found by their group only.
    """
    found = set(_of_group(pid))
    with suppress(psutil.NoSuchProcess):
        found |= set(psutil.Process(pid).children(recursive=True))
    return {each for each in found if each.pid != pid}


def kill(processes: Collection[psutil.Process]) -> None:
    """Kill processes, and return when they are gone or after `KILLED_S` seconds."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    until_s = time.monotonic() + KILLED_S
    while any(map(_runs, processes)) and time.monotonic() < until_s:
        time.sleep(PAUSE_S)


def _of_group(group: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group:
                yield process


def _runs(process: psutil.Process) -> bool:
    """Return whether a process holds any memory: one that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
