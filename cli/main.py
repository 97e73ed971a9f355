"""The `treeopt` command: what the subcommands share is how they fail."""

from typing import Any

import click

from treeopt import __version__
from treeopt.cli.bench import bench
from treeopt.cli.compare import compare
from treeopt.cli.export import export
from treeopt.cli.import_tree import import_tree
from treeopt.cli.profile import profile
from treeopt.cli.run import run
from treeopt.cli.show import show
from treeopt.cli.solve import solve
from treeopt.cli.streams import guarded
from treeopt.errors import InterruptionError, TreeoptError, printable


class Interruption(click.ClickException):
    """Ctrl-C, told in one line, with the exit code that shells expect of it."""

    exit_code = 130


class Commands(click.Group):
    """Subcommands whose known failures are one line and exit code 1; usage errors are click's, exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, whatever standard output and standard error are."""
        with guarded():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand and translate its failures, unless --debug asks for the traceback."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, TreeoptError, MemoryError) as error:
            if ctx.params.get("debug"):
                raise
            raise _failure(error) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        del ctx
        return list(self.commands)


def _failure(error: BaseException) -> click.ClickException:
    """Return how a failure is told."""
    if isinstance(error, KeyboardInterrupt):
        return Interruption("interrupted. Nothing was written.")
    text = str(error) or "out of memory. Ask for less, or use a machine with more."
    kind = Interruption if isinstance(error, InterruptionError) else click.ClickException
    return kind(" ".join(printable(part) for part in text.split()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="treeopt")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def main(debug: bool) -> None:
    """Measure a pair of models, find the fastest speculation tree for this machine, run it, check the promise."""


for command in (profile, solve, show, compare, export, import_tree, run, bench):
    main.add_command(command)
