"""Helpers that read and write a file in any format."""

from pathlib import Path

from treeopt.trees import TokenTree, TreeFile
from treeopt.trees.formats import FORMATS, parse
from treeopt.trees.formats.detection import detect

FORMAT_OF = {tree_format.name: tree_format for tree_format in FORMATS}


def write_tree(name: str, tree: TokenTree, /, **options: object) -> bytes:
    """Return a tree in a format, with the options that it takes."""
    tree_format = FORMAT_OF[name]
    return tree_format.write(tree, **{key: value for key, value in options.items() if key in tree_format.takes})


def detected_format(path: Path) -> str:
    """Return the name of the format of a file's content."""
    tree_format = detect(path, path.read_bytes()).tree_format
    return "treeopt" if tree_format is None else tree_format.name


def read_trees(path: Path) -> dict[str | None, TreeFile]:
    """Return every tree of a file by its name."""
    return parse(path, path.read_bytes())
