"""The `treeopt` command: its subcommands, and how failures end it."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from treeopt.cli.command import LazyGroup
from treeopt.cli.options.record import print_option
from treeopt.cli.streams import guard_streams
from treeopt.cli.terminal import print_warnings_in_one_line
from treeopt.errors import InterruptionError, TreeoptError, printable


class Interruption(click.ClickException):
    """An interruption by Ctrl-C, with the exit code that shells expect."""

    exit_code = 130


class Commands(LazyGroup):
    """Known failures print one line and exit with 1; usage errors exit with 2, as in click."""

    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {
        "profile": ("profile", "Measure a target and its drafters on this machine."),
        "solve": ("solve", "Find the fastest tree and rule for a profile."),
        "schedule": ("schedule", "Plan a tree for every batch size."),
        "show": ("show", "Draw a tree or a profile."),
        "compare": ("compare", "Predict given trees next to the best ones."),
        "probe": ("probe", "Measure a serving engine."),
        "export": ("export", "Write a tree or a setting for another program."),
        "import": ("import_tree", "Convert another program's tree to a tree file."),
        "run": ("run", "Generate text with a tree."),
        "bench": ("bench", "Measure speedups next to their predictions."),
        "simulate": ("simulate", "Predict throughput and latency of a server under load."),
        "report": ("report", "Write one page with profiles, trees and benchmarks."),
        "doctor": ("doctor", "Check this machine and installation."),
    }

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with guard_streams():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with print_warnings_in_one_line():
                return super().invoke(ctx)
        except (KeyboardInterrupt, TreeoptError, MemoryError, RuntimeError) as error:
            if ctx.params.get("debug") or not _is_known(error):
                raise
            raise _as_click_error(error) from None


def _is_known(error: BaseException) -> bool:
    """Return whether a failure has a message for users; of torch's, only that memory ran out."""
    if isinstance(error, KeyboardInterrupt | TreeoptError | MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from treeopt.profiler.latency.memory import is_out_of_memory

    return is_out_of_memory(error)


def _as_click_error(error: BaseException) -> click.ClickException:
    if isinstance(error, KeyboardInterrupt):
        return Interruption("interrupted. Nothing was written.")
    text = str(error) or "out of memory. Ask for less, or use a machine with more."
    kind = Interruption if isinstance(error, InterruptionError) else click.ClickException
    return kind(" ".join(printable(word) for word in text.split()))


def _describe_version() -> str:
    from treeopt.version import __version__  # takes longer than the rest of `--help`

    return f"treeopt, version {__version__}"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@print_option("--version", _describe_version, "Show the version and exit.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def main(debug: bool) -> None:
    """Find the fastest speculation tree for your models and machine.

    Measure with profile, plan with solve, generate with run, and check the prediction with bench.
    """
