"""What a tree is: `TokenTree`, named shapes, the tree file, drawing."""

from treeopt.trees.figure import save_figure
from treeopt.trees.headline import headline
from treeopt.trees.shapes import chain, chains, k_ary, level_widths
from treeopt.trees.text_drawing import draw_text
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile, load, load_file

__all__ = [
    "Provenance",
    "TokenTree",
    "TreeFile",
    "chain",
    "chains",
    "draw_text",
    "headline",
    "k_ary",
    "level_widths",
    "load",
    "load_file",
    "save_figure",
]
