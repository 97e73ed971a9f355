"""`treeopt show`: a tree as text, as a picture or as a tree file."""

from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.inputs import read_any_tree, tree_options
from treeopt.cli.options import file, output
from treeopt.cli.text import diagram_width
from treeopt.cli.values import MOST, Whole
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM

TREE_SUFFIX = ".json"


@click.command(cls=Command)
@click.argument("path", type=file, metavar="FILE")
@tree_options("a solution file")
@click.option(
    "-o",
    "--output",
    "written",
    type=output,
    default=Path(STANDARD_STREAM),
    help="Picture to write, .svg, .png or .pdf, or tree file, .json.",
)
@click.option("--rows", type=Whole(9, MOST), default=64, show_default=True, help="Most lines of the text diagram.")
def show(path: Path, name: str | None, budget: int | None, depth: int | None, written: Path, rows: int) -> None:
    """Draw a tree as text, or as a picture with -o.

    FILE is a tree in any known format (treeopt import --list), or a solution file, out of which the tree of most tokens
    for --budget and --depth is taken.
    """
    as_text = str(written) == STANDARD_STREAM
    as_tree = not as_text and checked_suffix(written, TREE_SUFFIX) == TREE_SUFFIX
    from treeopt.trees import draw_text, headline, save_figure

    content = read_any_tree(path, name=name, budget=budget, depth=depth)
    if as_text:
        click.echo(draw_text(content.tree, reach=content.reach, max_rows=rows, width=diagram_width()))
        return
    if as_tree:
        content.save(written)
    else:
        title, subtitle = headline(content)
        save_figure(content.tree, written, reach=content.reach, title=title, subtitle=subtitle)
    click.echo(f"Written to {written}", err=True)
