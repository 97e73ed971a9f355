"""Trees as links between nodes: the children of every node, the parent of every node, or a matrix.

NxD Inference's token tree lists the children, `{"0": [1, 2], "1": [3]}`; its own files write nodes as strings, and include
leaves with no children. A list of parents is `[-1, 0, 0, 1]`, or the same under `parents`. `tree_adj` contains children by
node, a matrix of parents and children, or an attention mask.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from treeopt.errors import FormatError, InfeasibleError
from treeopt.files.fields import abbreviate, quote_name
from treeopt.trees.formats.topology import MASK_NODES, TopologyFormat, TreeFormat
from treeopt.trees.token_tree import MAX_NODES, TokenTree

PARENTS_KEY, ADJACENCY_KEY = "parents", "tree_adj"


def list_children(tree: TokenTree) -> list[list[int]]:
    """Return the children of every node, in rank order.

    >>> list_children(TokenTree([-1, 0, 0, 1]))
    [[1, 2], [3], [], []]
    """
    lists: list[list[int]] = [[] for _ in range(tree.nodes)]
    for node, parent in enumerate(tree.parents[1:].tolist(), start=1):
        lists[parent].append(node)
    return lists


def tree_from_children(
    children: Sequence[Sequence[int]], error: Callable[[int, str], FormatError], *, any_order: bool = False
) -> TokenTree:
    """Return the tree in which `children[i]` are the children of node i, in rank order.

    Args:
        children: for every node.
        error: returns the error for a node and a reason.
        any_order: accept nodes numbered in any order; the tree has them in level order.

    Raises `error(node, reason)` for an unknown node, two parents, an unreachable node, a cycle, or numbers that are not in
    level order.
    """
    nodes = len(children)
    parents = [-1] * nodes
    for node, ids in enumerate(children):
        for child in ids:
            if not 0 < child < nodes:
                actual = "the root, which has no parent" if child == 0 else abbreviate(child)
                raise error(node, f"expected nodes from 1 to {nodes - 1}. Got {actual}.")
            if parents[child] >= 0:
                raise error(node, f"expected one parent for node {child}. Got two, {parents[child]} and {node}.")
            parents[child] = node
    for node in range(1, nodes):
        if parents[node] < 0:
            raise error(node, f"expected a parent for every node. Got none for {node}: it cannot be reached.")
    order = [0]
    for node in order:  # grows during the loop: a breadth-first walk
        order.extend(children[node])
    if len(order) < nodes:
        unreached = min(set(range(nodes)).difference(order))
        raise error(unreached, f"expected a path from the root to node {unreached}. Got a cycle.")
    if any_order:
        position_of = {node: position for position, node in enumerate(order)}
        return TokenTree([-1, *(position_of[parents[node]] for node in order[1:])])
    for position, node in enumerate(order):
        if node != position:
            raise error(parents[node], f"expected nodes numbered level by level, so {position} here. Got {node}.")
    return TokenTree(parents)


def write_nxdi(tree: TokenTree) -> bytes:
    """Return the JSON, without the leaves; raises InfeasibleError for the root alone and for more than 65,536 nodes."""
    if tree.nodes == 1:
        raise InfeasibleError(
            "tree: expected at least one draft token, because NxD Inference loads no tree without. Got the root alone: decode "
            "without a draft."
        )
    if tree.nodes > MAX_NODES:
        raise InfeasibleError(f"nodes: expected at most {MAX_NODES}. Got {tree.nodes}: solve with a smaller --budget.")
    children = {str(node): ids for node, ids in enumerate(list_children(tree)) if ids}
    return f"{json.dumps(children)}\n".encode()


def read_nxdi(path: Path, content: Mapping[str, object]) -> TokenTree:
    """Return the tree of parsed JSON, nodes numbered in any order; raises FormatError naming the file, node and reason."""
    children: dict[int, list[int]] = {}
    for key, value in content.items():
        node = _node(path, key)
        if node in children:
            raise FormatError(path, quote_name(key), f"expected node {node} once. Got it twice: remove one.")
        children[node] = _ids(path, key, value)
    nodes = {0, *children}.union(*children.values())
    if len(nodes) > MAX_NODES:
        raise FormatError(path, "content", f"expected at most {MAX_NODES} nodes. Got {len(nodes)}.")
    if nodes != set(range(len(nodes))):
        missing = min(set(range(len(nodes))) - nodes)
        raise FormatError(
            path, str(missing), f"expected nodes 0 to {abbreviate(max(nodes))} without a gap. Got no {missing}."
        )
    lists = [children.get(node, []) for node in range(len(nodes))]
    return tree_from_children(lists, lambda node, reason: FormatError(path, str(node), reason), any_order=True)


def _node(path: Path, key: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,8}", key, re.ASCII):
        raise FormatError(path, quote_name(key), 'unknown field. Expected the numbers of nodes, such as "0".')
    return int(key)


def _ids(path: Path, key: str, value: object) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or not set(map(type, value)) <= {int, str}:
        raise FormatError(path, key, f"expected a list of nodes. Got {abbreviate(value)}.")
    ids = [_node(path, child) if isinstance(child, str) else child for child in value]
    if ids and min(ids) < 1:
        actual = "the root, which has no parent" if min(ids) == 0 else abbreviate(min(ids))
        raise FormatError(path, key, f"expected nodes of at least 1. Got {actual}.")
    return ids


def is_parents(content: object) -> TypeGuard[list[object]]:
    """Return whether a value is a list that begins with the root's parent, -1 or null."""
    return isinstance(content, list) and bool(content) and content[0] in (-1, None)


def read_parents(path: Path, content: object) -> TokenTree:
    """Return the tree of a list of parents, the root first and other nodes in any order.

    Siblings are ranked in the order of their numbers. Raises FormatError naming the file, the node and the reason.
    """
    if not is_parents(content):
        raise FormatError(
            path, PARENTS_KEY, f"expected parents that begin with -1, the root's. Got {abbreviate(content)}."
        )
    if len(content) > MAX_NODES:
        raise FormatError(path, PARENTS_KEY, f"expected at most {MAX_NODES} nodes. Got {len(content)}.")
    children: list[list[int]] = [[] for _ in content]
    for node, parent in enumerate(content[1:], start=1):
        if type(parent) is not int or not 0 <= parent < len(content):
            reason = f"expected a parent from 0 to {len(content) - 1}. Got {abbreviate(parent)}."
            raise FormatError(path, f"{PARENTS_KEY}[{node}]", reason)
        children[parent].append(node)
    return tree_from_children(
        children, lambda node, reason: FormatError(path, f"{PARENTS_KEY}[{node}]", reason), any_order=True
    )


def read_adjacency(path: Path, content: object) -> TokenTree:
    """Return the tree under `tree_adj`; raises FormatError naming the file, the row and the reason."""
    if isinstance(content, dict):
        return read_nxdi(path, content)
    hint = ""

    def error(node: int, reason: str) -> FormatError:
        return FormatError(path, f"{ADJACENCY_KEY}[{node}]", reason + hint)

    if _is_child_lists(content):
        return tree_from_children(content, error, any_order=True)
    rows = _read_matrix(path, content)
    diagonal = {rows[node][node] for node in range(len(rows))}
    if diagonal == {0}:
        children = [[child for child, edge in enumerate(row) if edge] for row in rows]
    elif diagonal == {1}:
        children = _children_from_mask(path, rows)
    else:
        reason = (
            "expected zeros on the diagonal, children of each node in its row, or ones, an attention mask. Got both."
        )
        raise FormatError(path, ADJACENCY_KEY, reason)
    hint = " Rows are parents and columns children: transpose the matrix if its rows are children."
    return tree_from_children(children, error, any_order=True)


def _is_child_lists(content: object) -> TypeGuard[list[list[int]]]:
    """Return whether a value lists n - 1 children of n nodes; a matrix has n x n entries."""
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        return False
    if len(content) < 2 or sum(map(len, content)) != len(content) - 1 or len(content) > MASK_NODES:
        return False
    return all(type(child) is int for row in content for child in row)


def _read_matrix(path: Path, content: object) -> list[list[int]]:
    if not isinstance(content, list) or not content:
        raise FormatError(path, ADJACENCY_KEY, f"expected children by node, or a matrix. Got {abbreviate(content)}.")
    if len(content) > MASK_NODES:
        raise FormatError(path, ADJACENCY_KEY, f"expected at most {MASK_NODES} nodes. Got {len(content)}.")
    for node, row in enumerate(content):
        if not isinstance(row, list) or len(row) != len(content) or not all(entry in (0, 1) for entry in row):
            reason = f"expected {len(content)} entries of 0 and 1, one per node. Got {abbreviate(row)}."
            raise FormatError(path, f"{ADJACENCY_KEY}[{node}]", reason)
    return [[int(entry) for entry in row] for row in content]


def _children_from_mask(path: Path, rows: list[list[int]]) -> list[list[int]]:
    """Return the children of every node from a mask whose rows mark a node and its ancestors."""
    children: list[list[int]] = [[] for _ in rows]
    depth = [sum(row) - 1 for row in rows]
    for node, row in enumerate(rows):
        ancestors = [other for other, marked in enumerate(row) if marked and other != node]
        if node == 0 and not ancestors:
            continue
        parents = [other for other in ancestors if depth[other] == depth[node] - 1]
        if len(parents) != 1 or set(ancestors) != {other for other, marked in enumerate(rows[parents[0]]) if marked}:
            reason = (
                "expected ones for the node and its ancestors only, as in the mask of a tree. Got others: "
                "transpose the matrix if its columns mark ancestors."
            )
            raise FormatError(path, f"{ADJACENCY_KEY}[{node}]", reason)
        children[parents[0]].append(node)
    return children


NXDI = TopologyFormat(
    name="nxdi",
    title="AWS NxD Inference (--token-tree-json)",
    versions="as of 2026; untested on its hardware",
    needs="any tree of at least one draft token",
    text=True,
    write=write_nxdi,
)
PARENTS = TreeFormat(
    name="parents",
    title="the parent of every node (JSON)",
    versions="read only",
    needs="a list that begins with -1, or an object with parents",
)
ADJACENCY = TreeFormat(
    name="tree-adj",
    title="adjacency under tree_adj (JSON, YAML)",
    versions="read only",
    needs="children by node, a matrix of parents and children, or an attention mask",
)
