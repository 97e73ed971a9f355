"""The `treeopt` command: which subcommands there are, and what they share: how they fail."""

from collections.abc import Mapping
from typing import ClassVar

import click

from treeopt.cli.lazy import LazyGroup, Place
from treeopt.cli.text import warnings_in_one_line
from treeopt.errors import TreeoptError


class Commands(LazyGroup):
    """Subcommands whose known failures are one line and exit code 1; usage errors are click's, exit code 2."""

    places: ClassVar[Mapping[str, Place]] = {
        "profile": Place("profile", "Measure a pair of models on this machine."),
        "solve": Place("solve", "Find the tree and the rule with the most tokens per second."),
        "show": Place("show", "Draw a tree as text, or as a picture with -o."),
        "compare": Place("compare", "Predict trees of any origin beside the best ones."),
        "export": Place("export", "Write a tree or a setting for another program."),
        "import": Place("import_tree", "Turn another program's tree into a tree file."),
        "run": Place("run", "Generate a text with a tree."),
        "bench": Place("bench", "Check whether a prediction comes true."),
    }

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


def show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the version and end; it is looked up only here, because that takes longer than all else of --help."""
    del parameter
    if asked and not context.resilient_parsing:
        from treeopt import __version__

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
