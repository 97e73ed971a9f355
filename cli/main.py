"""The `treeopt` command: what the subcommands share is how they fail."""

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
from treeopt.cli.text import warnings_in_one_line
from treeopt.errors import TreeoptError


class Commands(click.Group):
    """Subcommands whose known failures are one line and exit code 1; usage errors are click's, exit code 2."""

    def invoke(self, context: click.Context) -> object:
        """Run the subcommand and translate its failures, unless --debug asks for the traceback."""
        try:
            with warnings_in_one_line():
                return super().invoke(context)
        except KeyboardInterrupt:
            if context.params.get("debug"):
                raise
            raise click.ClickException("interrupted. Nothing was written.") from None
        except (TreeoptError, MemoryError) as error:
            if context.params.get("debug"):
                raise
            text = str(error) or "out of memory. Ask for less, or use a machine with more."
            raise click.ClickException(" ".join(text.split())) from None

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        del context
        return list(self.commands)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
def main(debug: bool) -> None:
    """Measure a pair of models, find the fastest speculation tree for this machine, run it, check the promise."""


for command in (profile, solve, show, compare, export, import_tree, run, bench):
    main.add_command(command)
