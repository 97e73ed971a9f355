"""Which of several processes ended first, and why.

A process that ends early leaves its reason on a store of torch.distributed, which the launcher keeps.  One that leaves
none was killed.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from treeopt.errors import TreeoptError
from treeopt.profiler.processes.processes import what_is_kept

WAIT_S = 5.0
"""How long a process waits for the reasons of others."""
PAUSE_S = 0.1
FOLLOWED = "told to end"
"""The reason of a process that has none of its own: another ended, or the launcher was told to."""
INTERRUPTED = "interrupted"
KILLED = "killed, or cut off"


class ExitReasons:
    """The reasons of all processes.

    Args:
        rank: this process.
        count: how many there are.
        store: where the reasons are left.
    """

    def __init__(self, rank: int, count: int, store: Store) -> None:
        self.rank, self.count = rank, count
        self._store = store

    @contextmanager
    def watched(self, kept: Path | None) -> Iterator[None]:
        """End this process when another ends, with a TreeoptError that names that one; see `Processes.watched`.

        Of several processes that would say the same the first does, and the rest exit with 1.  After an error the
        process ignores the signals to end, so that it can tell: it is to end at once.
        """
        before = signal.signal(signal.SIGTERM, _told_to_end)
        try:
            yield
        except BaseException as error:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_IGN)
            final = self._final(error, kept)
            if final is error:
                raise
            raise final from error
        signal.signal(signal.SIGTERM, before)

    def _final(self, error: BaseException, kept: Path | None) -> BaseException:
        """Leave the reason of this process and return the error to end with."""
        own = _reason(error)
        known = own in (FOLLOWED, INTERRUPTED) or isinstance(error, TreeoptError)
        reasons = {**self._others(own, wait_s=WAIT_S if known and own != INTERRUPTED else 0.0), self.rank: own}
        if not known:
            return error  # with its traceback
        everyone = own == INTERRUPTED or set(reasons.values()) == {own}
        alike = [rank for rank, each in reasons.items() if each == own]
        if (own == FOLLOWED and self.rank != min(alike)) or (everyone and self.rank != 0):
            return SystemExit(1)
        found = f"{kept}*" if kept is not None and kept.exists() else None
        return TreeoptError(f"{own if everyone else self._message(reasons)}. {what_is_kept(found)}")

    def _message(self, reasons: Mapping[int, str | None]) -> str:
        """Return which processes ended for reasons of their own."""
        own = {rank: each for rank, each in reasons.items() if each not in (None, FOLLOWED)}
        ended = own or {rank: KILLED for rank, each in reasons.items() if each is None}
        return ", ".join(f"process {rank} of {self.count} ended ({each})" for rank, each in sorted(ended.items()))

    def _others(self, own: str, *, wait_s: float) -> dict[int, str | None]:
        """Leave the reason of this process; return those of the others, None for one that left none in time."""
        found: dict[int, str | None] = dict.fromkeys(rank for rank in range(self.count) if rank != self.rank)
        until_s = time.monotonic() + wait_s
        try:
            self._store.set(str(self.rank), own)
            while True:
                for rank in [rank for rank, each in found.items() if each is None and self._store.check([str(rank)])]:
                    found[rank] = self._store.get(str(rank)).decode()
                if None not in found.values() or time.monotonic() > until_s:
                    return found
                time.sleep(PAUSE_S)
        except dist.DistError:  # the store is gone, with the launcher or the machine that it ran on
            return found


class _ToldToEnd(BaseException):
    """The launcher ends all processes when one has ended."""


def _told_to_end(*_: object) -> NoReturn:
    raise _ToldToEnd


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, _ToldToEnd) or _lost_another(error):
        return FOLLOWED
    text = " ".join(str(error).split()).removesuffix(".")
    return text if isinstance(error, TreeoptError) else f"{type(error).__name__}: {text}"


def _lost_another(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, says that another process cannot be reached."""
    while error is not None:
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            return True
        error = error.__cause__
    return False
