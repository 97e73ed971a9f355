"""`treeopt import`: another program's tree as a tree file."""

from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE, TreeChoiceOptions, file, output_option, read_any_tree
from treeopt.cli.options.record import argument, group, print_option
from treeopt.cli.terminal import print_result
from treeopt.report.text import counted, quoted


def _describe_formats() -> str:
    from treeopt.report.export_text import import_list

    return import_list()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTreeOptions:
    path: Path = argument(type=file, metavar="FILE")
    written: Path = output_option("Tree file to write; - for standard output.", default=Path("tree.json"))
    choice: TreeChoiceOptions = group(TreeChoiceOptions)


@click.command("import", cls=Command, record=ImportTreeOptions)
@print_option("--list", _describe_formats, "List all formats and exit.")
def import_tree(args: ImportTreeOptions) -> None:
    """Convert another program's tree to a tree file.

    FILE is a tree in any known format (--list), or a solution file.  The format is recognised by the file's content, not
    by its name.  Nothing in it is executed.
    """
    tree = read_any_tree(args.path, args.choice)
    tree.save(args.written)
    origin = (tree.provenance and tree.provenance.tool) or "tree file"
    text = f"{origin}: {counted(tree.tree.nodes, 'node')}, root included, depth {tree.tree.max_depth}"
    file = quoted(args.written)
    compare = f", treeopt compare {file}" if PROFILE.exists() else ""
    print_result(text, [args.written], next_command=f"treeopt show {file}{compare}")
