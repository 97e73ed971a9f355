"""`treeopt show`: a tree as text or as a picture."""

from pathlib import Path

import click

from treeopt.cli.options import file, output
from treeopt.files import STANDARD_STREAM, check_writable


@click.command()
@click.argument("tree", type=file)
@click.option(
    "-o", "--output", "path", type=output, default=Path(STANDARD_STREAM), help="Picture to write: .svg, .png or .pdf."
)
@click.option(
    "--rows", type=click.IntRange(min=9), default=64, show_default=True, help="Most lines of the text diagram."
)
def show(tree: Path, path: Path, rows: int) -> None:
    """Draw TREE: a diagram on standard output, or a picture with -o."""
    from treeopt.trees import draw_text, load_file, save_figure

    check_writable(path)
    content = load_file(tree)
    if str(path) == STANDARD_STREAM:
        click.echo(draw_text(content.tree, reach=content.reach, max_rows=rows))
        return
    save_figure(content.tree, path, reach=content.reach, title=_title(content.tree.nodes, content.tree.max_depth))
    click.echo(f"Written to {path}", err=True)


def _title(nodes: int, depth: int) -> str:
    return f"{nodes} node{'s' * (nodes > 1)}, depth {depth}"
