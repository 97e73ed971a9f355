"""`treeopt import`: another program's tree as a tree file."""

from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE, TreeChoiceOptions, file, output_option, read_any_tree
from treeopt.cli.options.record import Function, argument, group, options
from treeopt.cli.outputs import is_stdout
from treeopt.report.text import counted, quoted


def list_option(function: Function) -> Function:
    """Add the option `--list` of `treeopt export` and `treeopt import`."""

    def print_list(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        del parameter
        if value and not context.resilient_parsing:
            from treeopt.report.export_text import export_list, import_list

            click.echo(import_list() if context.info_name == "import" else export_list())
            context.exit()

    return click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_list,
        help="List all formats and exit.",
    )(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTreeOptions:
    path: Path = argument(type=file, metavar="FILE")
    written: Path = output_option("Tree file to write; - for standard output.", default=Path("tree.json"))
    choice: TreeChoiceOptions = group(TreeChoiceOptions)


@click.command("import", cls=Command)
@list_option
@options(ImportTreeOptions)
def import_tree(args: ImportTreeOptions) -> None:
    """Convert another program's tree to a tree file.

    FILE is a tree in any known format (--list), or a solution file.  The format is recognized by the file's content, not
    by its name.  Nothing in it is executed.
    """
    tree = read_any_tree(args.path, args.choice)
    tree.save(args.written)
    to_stdout = is_stdout(args.written)
    origin = (tree.provenance and tree.provenance.tool) or "tree file"
    click.echo(
        f"{origin}: {counted(tree.tree.nodes, 'node')}, root included, depth {tree.tree.max_depth}", err=to_stdout
    )
    if not to_stdout:
        file = quoted(args.written)
        compare = f", treeopt compare {file}" if PROFILE.exists() else ""
        click.echo(f"Written to {args.written}. Next: treeopt show {file}{compare}")
