"""Numbers as the commands print them, and a word to those who wait."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from treeopt.latency import Estimate

SILENCE_S = 2.0


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, three digits.

    >>> milliseconds(0.0012345)
    '1.23'
    """
    return f"{1000 * seconds:#.3g}".rstrip(".")


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "thread"), counted(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def spread(estimate: Estimate, scale: float = 1.0) -> str:
    """Return a number with its 95 % interval.

    >>> spread(Estimate(1.5, 1.4, 1.62))
    '1.50 (1.40-1.62)'
    """
    value, low, high = (scale * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


@contextmanager
def patience(reason: str) -> Iterator[None]:
    """Say on standard error why nothing has been printed, once the work inside has taken two seconds."""
    timer = threading.Timer(SILENCE_S, click.echo, [reason], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
