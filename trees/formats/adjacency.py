"""A tree under `tree_adj`: the children of every node, a matrix of parents and children, or an attention mask."""

from collections.abc import Callable
from pathlib import Path

from treeopt.errors import FormatError
from treeopt.trees.formats import nxdi
from treeopt.trees.formats.checks import MASK_NODES, short
from treeopt.trees.formats.child_lists import tree_of_child_lists
from treeopt.trees.formats.topology import NamedTree, TreeFormat

KEY = "tree_adj"


def read(path: Path, content: object) -> tuple[NamedTree, ...]:
    """Return the tree of what lies under `tree_adj`; raises FormatError naming the file, the row and the reason."""
    if isinstance(content, dict):
        return nxdi.read(path, content)
    children = _child_lists(content)
    if children is not None:
        return (NamedTree(None, tree_of_child_lists(children, _fault(path), any_order=True)),)
    rows = _matrix(path, content)
    diagonal = {rows[node][node] for node in range(len(rows))}
    if diagonal == {0}:
        children = [[child for child, edge in enumerate(row) if edge] for row in rows]
    elif diagonal == {1}:
        children = _of_mask(path, rows)
    else:
        reason = (
            "expected zeros on the diagonal, children of each node in its row, or ones, an attention mask. Got both."
        )
        raise FormatError(path, KEY, reason)

    hint = " Rows are parents and columns children: transpose the matrix if its rows are children."
    return (NamedTree(None, tree_of_child_lists(children, _fault(path, hint), any_order=True)),)


def _fault(path: Path, hint: str = "") -> Callable[[int, str], FormatError]:
    return lambda node, reason: FormatError(path, f"{KEY}[{node}]", reason + hint)


def _child_lists(content: object) -> list[list[int]] | None:
    """Return the children of every node, None for a matrix: n nodes have n - 1 children, a matrix n x n entries."""
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        return None
    if len(content) < 2 or sum(map(len, content)) != len(content) - 1 or len(content) > MASK_NODES:
        return None
    return content if all(type(child) is int for row in content for child in row) else None


def _matrix(path: Path, content: object) -> list[list[int]]:
    if not isinstance(content, list) or not content:
        raise FormatError(path, KEY, f"expected children by node, or a matrix. Got {short(content)}.")
    if len(content) > MASK_NODES:
        raise FormatError(path, KEY, f"expected at most {MASK_NODES} nodes. Got {len(content)}.")
    for node, row in enumerate(content):
        if not isinstance(row, list) or len(row) != len(content) or not all(each in (0, 1) for each in row):
            reason = f"expected {len(content)} entries of 0 and 1, one per node. Got {short(row)}."
            raise FormatError(path, f"{KEY}[{node}]", reason)
    return [[int(each) for each in row] for row in content]


def _of_mask(path: Path, rows: list[list[int]]) -> list[list[int]]:
    """Return every node's children in a mask whose rows mark a node and its ancestors."""
    children: list[list[int]] = [[] for _ in rows]
    depth = [sum(row) - 1 for row in rows]
    for node, row in enumerate(rows):
        ancestors = [other for other, seen in enumerate(row) if seen and other != node]
        if node == 0 and not ancestors:
            continue
        parents = [other for other in ancestors if depth[other] == depth[node] - 1]
        if len(parents) != 1 or {*ancestors} != {other for other, seen in enumerate(rows[parents[0]]) if seen}:
            reason = (
                "expected ones for the node and its ancestors only, as in the mask of a tree. Got others: "
                "transpose the matrix if its columns mark ancestors."
            )
            raise FormatError(path, f"{KEY}[{node}]", reason)
        children[parents[0]].append(node)
    return children


FORMAT = TreeFormat(
    name="tree-adj",
    title="adjacency under tree_adj (JSON, YAML)",
    versions="read only",
    needs="children by node, a matrix of parents and children, or an attention mask",
)
