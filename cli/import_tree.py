"""`treeopt import`: another program's tree as a tree file."""

from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.format_list import list_option
from treeopt.cli.inputs import read_any_tree, tree_options
from treeopt.cli.options import PROFILE, file, output
from treeopt.cli.text import quoted
from treeopt.files.whole_files import STANDARD_STREAM


@click.command("import", cls=Command)
@list_option
@click.argument("path", type=file, metavar="FILE")
@click.option(
    "-o",
    "--output",
    "written",
    type=output,
    default=Path("tree.json"),
    show_default=True,
    help="Tree file to write; - is standard output.",
)
@tree_options("a solution file")
def import_tree(path: Path, written: Path, name: str | None, budget: int | None, depth: int | None) -> None:
    """Turn another program's tree into a tree file.

    FILE holds a tree in any known format (--list), or is a solution file.

    The format is found by what the file holds, not by its name.  Nothing in it is executed.
    """
    content = read_any_tree(path, name=name, budget=budget, depth=depth)
    content.save(written)
    to_stdout = str(written) == STANDARD_STREAM
    origin = (content.provenance and content.provenance.tool) or "tree file"
    nodes = f"{content.tree.nodes} node{'s' * (content.tree.nodes > 1)}, root included"
    click.echo(f"{origin}: {nodes}, depth {content.tree.max_depth}", err=to_stdout)
    if not to_stdout:
        compared = f", treeopt compare {quoted(written)}" if PROFILE.exists() else ""
        click.echo(f"Written to {written}. Next: treeopt show {quoted(written)}{compared}")
