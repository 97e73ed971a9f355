"""`treeopt import`: another program's tree as a tree file."""

from dataclasses import dataclass, field
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.format_list import list_option
from treeopt.cli.options.inputs import PROFILE, TREE_NAME, file, output_option, read_any_tree, tree_budget, tree_depth
from treeopt.cli.options.record import argument, options
from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.text import quoted

SIZED = "a solution file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTreeOptions:
    """Which tree, and where it is written."""

    path: Path = field(metadata=argument(type=file, metavar="FILE"))
    written: Path = field(
        metadata=output_option(
            "written", "Tree file to write; - is standard output.", default=Path("tree.json"), show_default=True
        )
    )
    name: str | None = field(metadata=TREE_NAME)
    budget: int | None = field(metadata=tree_budget(SIZED))
    depth: int | None = field(metadata=tree_depth(SIZED))


@click.command("import", cls=Command)
@list_option
@options(ImportTreeOptions)
def import_tree(asked: ImportTreeOptions) -> None:
    """Turn another program's tree into a tree file.

    FILE holds a tree in any known format (--list), or is a solution file.

    The format is found by what the file holds, not by its name.  Nothing in it is executed.
    """
    written = asked.written
    content = read_any_tree(asked.path, name=asked.name, budget=asked.budget, depth=asked.depth)
    content.save(written)
    to_stdout = str(written) == STANDARD_STREAM
    origin = (content.provenance and content.provenance.tool) or "tree file"
    nodes = f"{content.tree.nodes} node{'s' * (content.tree.nodes > 1)}, root included"
    click.echo(f"{origin}: {nodes}, depth {content.tree.max_depth}", err=to_stdout)
    if not to_stdout:
        compared = f", treeopt compare {quoted(written)}" if PROFILE.exists() else ""
        click.echo(f"Written to {written}. Next: treeopt show {quoted(written)}{compared}")
