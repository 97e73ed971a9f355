"""Trees: `TokenTree`, named shapes, the tree file, drawing."""

from typing import TYPE_CHECKING, Any

from treeopt.trees.figure_file import save_figure
from treeopt.trees.shapes import chain, chains, describe_tree, k_ary, kind_of, level_widths
from treeopt.trees.text_diagram import draw_text
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile, headline

if TYPE_CHECKING:
    from treeopt.any_tree import load, load_file

__all__ = [
    "Provenance",
    "TokenTree",
    "TreeFile",
    "chain",
    "chains",
    "describe_tree",
    "draw_text",
    "headline",
    "k_ary",
    "kind_of",
    "level_widths",
    "load",
    "load_file",
    "save_figure",
]


def __getattr__(name: str) -> Any:
    """Import `load` and `load_file` on first use (PEP 562), from a layer above this package."""
    from importlib import import_module

    if name not in ("load", "load_file"):
        raise AttributeError(f"module 'treeopt.trees' has no attribute {name!r}")
    value = getattr(import_module("treeopt.any_tree"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
