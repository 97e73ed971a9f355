"""Which of several processes ended first, and why.

A process that ends early leaves its reason on a store of torch.distributed, which belongs to the launcher.  A process that
leaves none was killed.
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
from treeopt.profiler.processes.processes import describe_checkpoint

WAIT_S = 5.0
"""How long a process waits for the reasons of others."""
POLL_S = 0.1
FOLLOWED = "stopped by another process"
"""The reason of a process that ends because another ended, or the launcher."""
INTERRUPTED = "interrupted"
KILLED = "killed, or cut off"


class ExitReasons:
    """The exit reasons of all processes.

    Args:
        rank: this process.
        count: number of processes.
        store: where the reasons are left.
    """

    def __init__(self, rank: int, count: int, store: Store) -> None:
        self.rank, self.count = rank, count
        self._store = store

    @contextmanager
    def supervise(self, checkpoint: Path | None) -> Iterator[None]:
        """End this process when another ends, with a TreeoptError that names that one; see `Processes.supervise`.

        If several processes would report the same error, the first one does and the others exit with 1.  After an error the
        process ignores SIGTERM and SIGINT, so that it can report before it ends.
        """
        before = signal.signal(signal.SIGTERM, _raise_terminated)
        try:
            yield
        except BaseException as error:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            final = self._final_error(error, checkpoint)
            if final is error:
                raise
            raise final from error
        signal.signal(signal.SIGTERM, before)

    def _final_error(self, error: BaseException, checkpoint: Path | None) -> BaseException:
        """Leave the reason of this process and return the error to end with."""
        own = _describe_error(error)
        expected = own in (FOLLOWED, INTERRUPTED) or isinstance(error, TreeoptError)
        wait_s = WAIT_S if expected and own != INTERRUPTED else 0.0
        reasons = {**self._exchange(own, wait_s=wait_s), self.rank: own}
        if not expected:
            return error  # with its traceback
        same_for_all = own == INTERRUPTED or set(reasons.values()) == {own}
        same = [rank for rank, reason in reasons.items() if reason == own]
        if (own == FOLLOWED and self.rank != min(same)) or (same_for_all and self.rank != 0):
            return SystemExit(1)
        files = f"{checkpoint}*" if checkpoint is not None and checkpoint.exists() else None
        return TreeoptError(f"{own if same_for_all else self._message(reasons)}. {describe_checkpoint(files)}")

    def _message(self, reasons: Mapping[int, str | None]) -> str:
        """Return a list of the processes that did not merely follow another one."""
        own = {rank: reason for rank, reason in reasons.items() if reason not in (None, FOLLOWED)}
        ended = own or {rank: KILLED for rank, reason in reasons.items() if reason is None}
        return ", ".join(f"process {rank} of {self.count} ended ({reason})" for rank, reason in sorted(ended.items()))

    def _exchange(self, own: str, *, wait_s: float) -> dict[int, str | None]:
        """Leave the reason of this process and return those of the others, None for one without a reason in time."""
        reasons: dict[int, str | None] = dict.fromkeys(rank for rank in range(self.count) if rank != self.rank)
        until_s = time.monotonic() + wait_s
        try:
            self._store.set(str(self.rank), own)
            while True:
                for rank in [rank for rank, reason in reasons.items() if reason is None]:
                    if self._store.check([str(rank)]):
                        reasons[rank] = self._store.get(str(rank)).decode()
                if None not in reasons.values() or time.monotonic() > until_s:
                    return reasons
                time.sleep(POLL_S)
        except dist.DistError:  # the store is gone, with the launcher or its machine
            return reasons


class _Terminated(BaseException):
    """The launcher ends all processes when one has ended."""


def _raise_terminated(*_: object) -> NoReturn:
    raise _Terminated


def _describe_error(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, _Terminated) or _is_connection_error(error):
        return FOLLOWED
    text = " ".join(str(error).split()).removesuffix(".")
    return text if isinstance(error, TreeoptError) else f"{type(error).__name__}: {text}"


def _is_connection_error(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, means that another process cannot be reached."""
    while error is not None:
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            return True
        error = error.__cause__
    return False
