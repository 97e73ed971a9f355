"""A tree as the parent of every node: `[-1, 0, 0, 1]`, or the same under `parents`."""

from pathlib import Path

from treeopt.errors import FormatError
from treeopt.trees.formats.checks import short
from treeopt.trees.formats.child_lists import tree_of_child_lists
from treeopt.trees.formats.topology import NamedTree, TreeFormat
from treeopt.trees.tree_text import MAX_NODES

KEY = "parents"


def is_parents(content: object) -> bool:
    """Return whether a value is a list that begins with the root's parent, -1 or null."""
    return isinstance(content, list) and bool(content) and content[0] in (-1, None)


def read(path: Path, content: object) -> tuple[NamedTree, ...]:
    """Return the tree of a list of parents, nodes in any order but for the root, the first.

    Siblings are ranked in the order of their numbers. Raises FormatError naming the file, the node and the reason.
    """
    if not is_parents(content):
        raise FormatError(path, KEY, f"expected parents that begin with -1, the root's. Got {short(content)}.")
    assert isinstance(content, list)  # as checked
    if len(content) > MAX_NODES:
        raise FormatError(path, KEY, f"expected at most {MAX_NODES} nodes. Got {len(content)}.")
    children: list[list[int]] = [[] for _ in content]
    for node, parent in enumerate(content[1:], start=1):
        if type(parent) is not int or not 0 <= parent < len(content):
            reason = f"expected a parent from 0 to {len(content) - 1}. Got {short(parent)}."
            raise FormatError(path, f"{KEY}[{node}]", reason)
        children[parent].append(node)

    def fault(node: int, reason: str) -> FormatError:
        return FormatError(path, f"{KEY}[{node}]", reason)

    return (NamedTree(None, tree_of_child_lists(children, fault, any_order=True)),)


FORMAT = TreeFormat(
    name="parents",
    title="the parent of every node (JSON)",
    versions="read only",
    needs="a list that begins with -1, or an object with parents",
)
