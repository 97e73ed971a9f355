"""`treeopt show`: a tree as text, as a picture or as a tree file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt import __version__
from treeopt.cli.options import file, output
from treeopt.errors import InvalidValueError
from treeopt.figure_file import checked_suffix
from treeopt.files import STANDARD_STREAM, check_writable

if TYPE_CHECKING:
    from treeopt.trees import TreeFile

TREE_SUFFIX = ".json"
ZIP_MAGIC = b"PK\x03\x04"
"""What a numpy archive, and so a solution file, begins with."""


@click.command()
@click.argument("path", type=file, metavar="FILE")
@click.option("--budget", type=click.IntRange(min=1), help="Of a solution file: most nodes; by default all it holds.")
@click.option("--depth", type=click.IntRange(min=0), help="Of a solution file: most levels; by default all it holds.")
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
def show(path: Path, budget: int | None, depth: int | None, written: Path, rows: int) -> None:
    """Draw the tree of FILE: a diagram on standard output, or a picture with -o.

    FILE is a tree file, or a solution file, out of which the tree of most tokens for --budget and --depth is taken.
    """
    as_text = str(written) == STANDARD_STREAM
    as_tree = not as_text and checked_suffix(written, TREE_SUFFIX) == TREE_SUFFIX
    check_writable(written)
    from treeopt.trees import draw_text, load_file, save_figure

    solution = _is_solution(path)
    content = _taken_out(path, budget, depth) if solution else load_file(path)
    if not solution and (budget, depth) != (None, None):
        raise click.UsageError(f"--budget and --depth are for solution files; {path} is a tree file. Leave them out.")
    if as_text:
        click.echo(draw_text(content.tree, reach=content.reach, max_rows=rows))
        return
    if as_tree:
        content.save(written)
    else:
        save_figure(
            content.tree, written, reach=content.reach, title=_title(content.tree.nodes, content.tree.max_depth)
        )
    click.echo(f"Written to {written}", err=True)


def _is_solution(path: Path) -> bool:
    """Tell a solution file by its first bytes; what cannot be read is left to the reader of tree files to refuse."""
    try:
        with path.open("rb") as opened:
            return opened.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    except OSError:
        return False


def _taken_out(path: Path, budget: int | None, depth: int | None) -> "TreeFile":
    """Return the tree of most tokens for a budget and depth out of a solution file."""
    from treeopt.solver import Solution
    from treeopt.trees import Provenance, TreeFile

    solution = Solution.load(path)
    for name, asked, most in (("--budget", budget, solution.max_nodes), ("--depth", depth, solution.max_depth)):
        if asked is not None and asked > most:
            raise InvalidValueError(
                f"{name}: {path} was solved up to {most}. Got {asked}: ask for less, or solve more."
            )
    tree = solution.tree(
        solution.max_nodes if budget is None else budget, solution.max_depth if depth is None else depth
    )
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=f"treeopt {__version__}", source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _title(nodes: int, depth: int) -> str:
    return f"{nodes} node{'s' * (nodes > 1)}, depth {depth}"
