"""What depends on the terminal: how wide a diagram is, and warnings in one line each."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from treeopt import errors
from treeopt.errors import TreeoptWarning


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


def warn(warning: errors.Warning) -> None:
    """Print a warning on standard error."""
    click.echo(f"Warning: {warning}", err=True)
