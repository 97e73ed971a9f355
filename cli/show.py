"""`treeopt show`: a tree as text, as a picture or as a tree file."""

from pathlib import Path

import click

from treeopt.cli.inputs import budget_option, depth_option, name_option, read_any_tree
from treeopt.cli.options import file, output
from treeopt.figure_file import checked_suffix
from treeopt.files import STANDARD_STREAM, check_writable

TREE_SUFFIX = ".json"


@click.command()
@click.argument("path", type=file, metavar="FILE")
@name_option
@budget_option
@depth_option
@click.option(
    "-o",
    "--output",
    "written",
    type=output,
    default=Path(STANDARD_STREAM),
    help="Picture to write, .svg, .png or .pdf, or tree file, .json.",
)
@click.option(
    "--rows", type=click.IntRange(min=9), default=64, show_default=True, help="Most lines of the text diagram."
)
def show(path: Path, name: str | None, budget: int | None, depth: int | None, written: Path, rows: int) -> None:
    """Draw the tree of FILE: a diagram on standard output, or a picture with -o.

    FILE is a tree in any known format (treeopt import --list), or a solution file, out of which the tree of most tokens
    for --budget and --depth is taken.
    """
    as_text = str(written) == STANDARD_STREAM
    as_tree = not as_text and checked_suffix(written, TREE_SUFFIX) == TREE_SUFFIX
    check_writable(written)
    from treeopt.trees import draw_text, headline, save_figure

    content = read_any_tree(path, name=name, budget=budget, depth=depth)
    if as_text:
        click.echo(draw_text(content.tree, reach=content.reach, max_rows=rows))
        return
    if as_tree:
        content.save(written)
    else:
        title, subtitle = headline(content)
        save_figure(content.tree, written, reach=content.reach, title=title, subtitle=subtitle)
    click.echo(f"Written to {written}", err=True)
