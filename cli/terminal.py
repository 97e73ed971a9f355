"""Output on the terminal: the width of diagrams, warnings, progress, and the check for other programs."""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt import errors
from treeopt.cli.outputs import is_stdout
from treeopt.compiling import is_compiling
from treeopt.errors import TreeoptWarning

if TYPE_CHECKING:
    from treeopt.profiler.latency.load import LoadReport
    from treeopt.runtime.models.model import LanguageModel

SILENT_S = 2.0
"""Work of this duration shows no progress."""
COMPILING = "compiling, once after installation"
REPEAT_S = 5.0
"""Interval between messages about other programs."""


def diagram_width(*, err: bool = False) -> int:
    """Return the characters in a line of a diagram: the terminal's width, or a fixed one if there is no terminal.

    Args:
        err: whether the diagram goes to standard error.
    """
    from treeopt.trees.text_diagram import MIN_WIDTH, WIDTH

    stream = sys.stderr if err else sys.stdout
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # no file descriptor, or a terminal without a size
        columns = 0
    return max(MIN_WIDTH, columns) if columns else WIDTH


@contextmanager
def print_warnings_in_one_line() -> Iterator[None]:
    """Print treeopt's own warnings on standard error, one line each; all others are shown as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", TreeoptWarning)
        show = warnings.showwarning

        def show_treeopt(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, TreeoptWarning):
                click.echo(f"Warning: {' '.join(str(message).split())}", err=True)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = show_treeopt
        yield


def warn(warning: errors.Warning) -> None:
    """Print a warning on standard error."""
    click.echo(f"Warning: {warning}", err=True)


def print_result(
    text: str, files: Sequence[Path], *, warnings: Iterable[errors.Warning] = (), next_command: str = ""
) -> None:
    """Print a result and its warnings, then the files that were written and the command to run next.

    If the first file is standard output, the text goes to standard error, and no file is named.
    """
    to_stdout = is_stdout(files[0])
    click.echo(text, err=to_stdout)
    for warning in warnings:
        warn(warning)
    if not to_stdout:
        following = f" Next: {next_command}" if next_command else ""
        click.echo(f"\nWritten to {', '.join(map(str, files))}.{following}")


@contextmanager
def progress(title: str, *, unit: str = "step", total: int = 1) -> Iterator[Callable[[], object]]:
    """Show progress on standard error: a bar after two seconds, or one line if standard error is not a terminal.

    Args:
        title: what is done, such as `solving`.
        unit: what is counted.
        total: how many units there are.

    Yields a function to call after each unit.
    """
    done, finished, start_s = 0, threading.Event(), time.time()

    def tick() -> None:
        nonlocal done
        done += 1

    def show() -> None:
        if finished.wait(SILENT_S):
            return
        if not sys.stderr.isatty():
            click.echo(f"{title}… ({COMPILING})" if is_compiling() else f"{title}…", err=True)
            return
        from tqdm import tqdm  # slow to import

        with tqdm(total=total, desc=f"{title:<10}", unit=unit) as bar:
            bar.start_t = start_s
            while not finished.wait(0.2):
                bar.set_description_str(COMPILING if is_compiling() else f"{title:<10}", refresh=False)
                bar.n = done
                bar.refresh()
            bar.n = done

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield tick
    finally:
        finished.set()
        thread.join()


def warn_of_other_programs(
    target: "LanguageModel", *, wait_s: float = 0.0, several: bool = False, remedy: str = "run this again"
) -> None:
    """Warn on standard error if other programs use processors that measurements need.

    Args:
        target: the model to time; on a GPU, the host's processors only have to keep it busy.
        wait_s: longest wait for idle processors; Ctrl-C ends it.
        several: whether this is one of several processes of one launcher, which do not count as other programs.
        remedy: what to do if they cannot be closed.
    """
    from treeopt.profiler.latency.load import report_load, timing_threads, wait_until_idle
    from treeopt.records.timing_quality import other_programs_warning

    last_s = -REPEAT_S

    def report(sight: "LoadReport", left_s: float) -> None:
        nonlocal last_s
        if (now_s := time.monotonic()) - last_s >= REPEAT_S:
            click.echo(f"Waiting at most {left_s:.0f} s for idle processors: other programs use {sight}.", err=True)
            last_s = now_s

    threads, root_pid = timing_threads(target.device), os.getppid() if several else None
    sight = wait_until_idle(lambda: report_load(root_pid), threads, wait_s, report)
    if sight.disturbs(threads):
        warn(other_programs_warning(str(sight), target.device.type, remedy))
