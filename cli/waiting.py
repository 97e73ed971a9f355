"""What those who wait are shown: nothing at first, then a bar, or one line where there is no terminal."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from treeopt.compiling import compiling

SILENCE_S = 2.0
COMPILING = "compiling, once after installation"


@contextmanager
def patience(reason: str, *, unit: str = "step", total: int = 1) -> Iterator[Callable[[], object]]:
    """Show on standard error how far the work inside is, once it has taken two seconds.

    Args:
        reason: what is done, such as `solving`.
        unit: what is counted.
        total: how many of them there are.

    Yields what to call after each.
    """
    work = _Work(reason, unit, total)
    shown = threading.Thread(target=work.show, daemon=True)
    shown.start()
    try:
        yield work.tick
    finally:
        work.ended.set()
        shown.join()


class _Work:
    """Counted by the thread that works, shown by another."""

    def __init__(self, reason: str, unit: str, total: int) -> None:
        self._reason, self._unit, self._total = reason, unit, total
        self._done, self._start_s = 0, time.time()
        self.ended = threading.Event()

    def tick(self) -> None:
        """Count one more."""
        self._done += 1

    def show(self) -> None:
        """Show the work until it has ended, unless that is soon."""
        if self.ended.wait(SILENCE_S):
            return
        if not sys.stderr.isatty():
            click.echo(f"{self._reason}… ({COMPILING})" if compiling() else f"{self._reason}…", err=True)
            return
        from tqdm import tqdm  # not for those who are quick

        with tqdm(total=self._total, desc=f"{self._reason:<10}", unit=self._unit) as bar:
            bar.start_t = self._start_s
            while not self.ended.wait(0.2):
                bar.set_description_str(COMPILING if compiling() else f"{self._reason:<10}", refresh=False)
                bar.n = self._done
                bar.refresh()
            bar.n = self._done
