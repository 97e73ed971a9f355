"""The `treeopt` command: which subcommands there are, and what they share: how they fail."""

from collections.abc import Mapping
from typing import Any, ClassVar

import click

from treeopt.cli.lazy import LazyGroup, Place
from treeopt.cli.streams import guarded
from treeopt.cli.terminal import warnings_in_one_line
from treeopt.errors import InterruptionError, TreeoptError, printable


class Interruption(click.ClickException):
    """Ctrl-C, told in one line, with the exit code that shells expect of it."""

    exit_code = 130


class Commands(LazyGroup):
    """Subcommands whose known failures are one line and exit code 1; usage errors are click's, exit code 2."""

    places: ClassVar[Mapping[str, Place]] = {
        "profile": Place("profile", "Measure a pair of models on this machine."),
        "solve": Place("solve", "Find the tree and the rule with the most tokens per second."),
        "schedule": Place("schedule", "Plan a tree for every number of texts decoded at a time."),
        "show": Place("show", "Draw a tree or a profile as text, or as a picture with -o."),
        "compare": Place("compare", "Predict trees of any origin beside the best ones."),
        "probe": Place("probe", "Measure an engine that runs, or that treeopt starts."),
        "export": Place("export", "Write a tree or a setting for another program."),
        "import": Place("import_tree", "Turn another program's tree into a tree file."),
        "run": Place("run", "Generate a text with a tree."),
        "bench": Place("bench", "Check whether a prediction comes true."),
        "simulate": Place("simulate", "Predict what a server does under a load."),
        "report": Place("report", "Write one page that shows it all."),
        "doctor": Place("doctor", "Tell what would make measurements better."),
    }

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, whatever standard output and standard error are."""
        with guarded():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand and translate its failures, unless --debug asks for the traceback."""
        try:
            with warnings_in_one_line():
                return super().invoke(ctx)
        except (KeyboardInterrupt, TreeoptError, MemoryError) as error:
            if ctx.params.get("debug"):
                raise
            raise _failure(error) from None


def _failure(error: BaseException) -> click.ClickException:
    """Return how a failure is told."""
    if isinstance(error, KeyboardInterrupt):
        return Interruption("interrupted. Nothing was written.")
    text = str(error) or "out of memory. Ask for less, or use a machine with more."
    kind = Interruption if isinstance(error, InterruptionError) else click.ClickException
    return kind(" ".join(printable(part) for part in text.split()))


def show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the version and end; it is looked up only here, because that takes longer than all else of --help."""
    del parameter
    if asked and not context.resilient_parsing:
        from treeopt.version import __version__

        click.echo(f"treeopt, version {__version__}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def main(debug: bool) -> None:
    """Measure a pair of models, find the fastest speculation tree for this machine, run it, check the promise."""
