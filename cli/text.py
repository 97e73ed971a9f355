"""Numbers and words as the commands print them."""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import TreeoptWarning

if TYPE_CHECKING:
    from treeopt.records.latency import Estimate


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, three digits, or all before the point.

    >>> milliseconds(0.0012345), milliseconds(0.9997), milliseconds(12.345)
    ('1.23', '1000', '12345')
    """
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "thread"), counted(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def quoted(path: Path | str) -> str:
    """Return a path as a shell takes it, in a command that is printed.

    >>> quoted("my folder/tree.json")
    "'my folder/tree.json'"
    """
    return shlex.quote(str(path))


def spread(estimate: "Estimate", scale: float = 1.0) -> str:
    """Return a number with its 95 % interval.

    >>> from treeopt.records.latency import Estimate
    >>> spread(Estimate(1.5, 1.4, 1.62))
    '1.50 (1.40-1.62)'
    """
    value, low, high = (scale * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def diagram_width(*, err: bool = False) -> int:
    """Return how many characters a line of a diagram may have: the terminal's, or as many as ever where there is none.

    Args:
        err: whether the diagram goes to standard error.
    """
    from treeopt.trees.text_diagram import LEAST_WIDTH, WIDTH

    stream = sys.stderr if err else sys.stdout
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # a terminal that does not tell, or a stream that is none
        columns = 0
    return max(LEAST_WIDTH, columns) if columns else WIDTH


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print treeopt's own warnings on standard error, one line each; all others are shown as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", TreeoptWarning)
        show = warnings.showwarning

        def show_ours(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, TreeoptWarning):
                click.echo(f"Warning: {' '.join(str(message).split())}", err=True)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = show_ours
        yield
