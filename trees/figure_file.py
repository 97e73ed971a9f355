"""The figure of a tree as an SVG, PNG or PDF file."""

from pathlib import Path

from treeopt.arguments import check_instance
from treeopt.arrays import Float64
from treeopt.files.figure_file import check_suffix, write_figure
from treeopt.trees.figure import tree_figure
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import checked_reach


def save_figure(
    tree: TokenTree,
    path: Path | str,
    *,
    reach: Float64 | None = None,
    title: str | None = None,
    subtitle: str | None = None,
) -> None:
    """Write an SVG, PNG or PDF figure of the tree, by the suffix of `path`; equal trees give equal bytes.

    Args:
        tree: the tree to draw.
        path: the file.
        reach: float64 (n,), probability that a step reaches each node; without it all nodes look the same.
        title: a line above the tree, such as `treeopt.trees.headline` returns.
        subtitle: a smaller line below the title.

    Raises InvalidValueError for another suffix and for a `reach` that does not fit the tree, TreeoptError if the file
    cannot be written.
    """
    check_suffix(path)
    check_instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    if reach is not None:
        reach = checked_reach(tree, reach)
    write_figure(tree_figure(tree, reach, title=title or "", subtitle=subtitle or ""), path)
