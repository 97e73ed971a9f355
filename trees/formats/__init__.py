"""Trees in the files of other programs: one module per format, written and read; which it is, the content tells."""

from pathlib import Path

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files.whole_files import read_bytes
from treeopt.trees.formats import sequoia
from treeopt.trees.formats.checks import label
from treeopt.trees.formats.detection import FORMATS, OWN, READABLE, found_in
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.provenance import Provenance
from treeopt.trees.tree_file import TreeFile, parse

MAX_BYTES = sequoia.MAX_BYTES
"""The largest of all files that are read."""
_LISTED = 20

__all__ = [
    "FORMATS",
    "READABLE",
    "NamedTree",
    "TopologyFormat",
    "WriteOptions",
    "Written",
    "format_named",
    "parse_tree",
    "parse_trees",
    "read_tree",
    "read_trees",
]


def format_named(name: str) -> TopologyFormat:
    r"""Return a format by its name; raises InvalidValueError listing all names.

    >>> from treeopt.trees import TokenTree
    >>> format_named("nxdi").write(TokenTree([-1, 0, 0, 1]), WriteOptions(), ".json").data
    b'{"0": [1, 2], "1": [3]}\n'
    """
    for each in FORMATS:
        if each.name == name:
            return each
    raise InvalidValueError(f"format: expected one of {', '.join(each.name for each in FORMATS)}. Got {name!r}.")


def read_trees(path: Path | str) -> tuple[NamedTree, ...]:
    """Return every tree of a file in any known format.

    Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
    """
    return parse_trees(path, read_bytes(path, limit_bytes=MAX_BYTES))


def parse_trees(path: Path | str, data: bytes) -> tuple[NamedTree, ...]:
    """Return every tree of a file's bytes; raises FormatError as `read_trees` does."""
    return found_in(Path(path), data).read()


def read_tree(path: Path | str, name: str | None = None) -> TreeFile:
    """Return one tree of a file, with all that a tree file says of it, else with the program it came from.

    Raises FormatError as `read_trees` does, and TreeoptError when the file has several trees and no `name` is given, or
    none of that name.
    """
    return parse_tree(path, read_bytes(path, limit_bytes=MAX_BYTES), name)


def parse_tree(path: Path | str, data: bytes, name: str | None = None) -> TreeFile:
    """Return one tree of a file's bytes; raises FormatError and TreeoptError as `read_tree` does."""
    found = found_in(Path(path), data)
    if found.name == OWN and name is None:
        return parse(path, data.decode("utf-8-sig"))
    tree = _chosen(path, found.read(), name).tree
    titles = {each.name: each.title for each in READABLE}
    return TreeFile(tree=tree, provenance=Provenance(source=str(path), tool=titles.get(found.name)))


def _chosen(path: Path | str, trees: tuple[NamedTree, ...], name: str | None) -> NamedTree:
    named = [each.name for each in trees if each.name is not None]
    if name is None and len(trees) == 1:
        return trees[0]
    if name in named:
        return trees[named.index(name)]
    names = ", ".join(map(label, named[:_LISTED])) + (", ..." if len(named) > _LISTED else "")
    if not named:
        raise TreeoptError(f"{path}: its tree has no name. Got --name {name}: leave it out.")
    if name is None:
        raise TreeoptError(f"{path}: holds {len(trees)} trees, {names}. Choose one with --name, name= from Python.")
    raise TreeoptError(
        f"{path}: holds no tree named {label(name)}. Choose one of {names} with --name, name= from Python."
    )
