"""Other programs on the machine, told before anything is timed."""

import os
import time
from typing import TYPE_CHECKING

import click

from treeopt.cli.terminal import warn

if TYPE_CHECKING:
    from treeopt.profiler.latency.programs import Sight
    from treeopt.runtime.models.model import LanguageModel

TELL_S = 5.0
"""How long waiting goes on without a word."""


def warn_of_other_programs(
    target: "LanguageModel", *, wait_s: float = 0.0, several: bool = False, otherwise: str = "run this again"
) -> None:
    """Look for half a second whether other programs would spoil times, and warn on standard error where they would.

    Args:
        target: the model that is to be timed; on a GPU the host's processors only have to keep it busy.
        wait_s: seconds to wait for quiet, at most; Ctrl-C ends it.
        several: whether this is one of several processes with one launcher, which are no others.
        otherwise: what to do instead of closing them.
    """
    from treeopt.profiler.latency.busy import threads_on
    from treeopt.profiler.latency.programs import look, wait_for_quiet
    from treeopt.records.steadiness import other_programs_warning

    told_s = -TELL_S

    def tell(sight: "Sight", left_s: float) -> None:
        nonlocal told_s
        if (now_s := time.monotonic()) - told_s >= TELL_S:
            click.echo(f"Waiting for quiet, {left_s:.0f} s at most: other programs use {sight}.", err=True)
            told_s = now_s

    threads, root_pid = threads_on(target.device), os.getppid() if several else None
    sight = wait_for_quiet(lambda: look(root_pid), threads, wait_s, tell)
    if sight.disturbs(threads):
        warn(other_programs_warning(str(sight), target.device.type, otherwise))
