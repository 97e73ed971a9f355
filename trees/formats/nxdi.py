"""NxD Inference's token tree: JSON in which every node names its children, `{"0": [1, 2], "1": [3]}`.

Its own files write the children as strings, and list leaves with no children.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from treeopt.errors import FormatError, InfeasibleError
from treeopt.trees.formats.checks import label, short
from treeopt.trees.formats.child_lists import child_lists, tree_of_child_lists
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_text import MAX_NODES


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the JSON, without the leaves; raises InfeasibleError for the root alone, and more than 65,536 nodes."""
    del options, suffix
    if tree.nodes == 1:
        raise InfeasibleError(
            "tree: expected at least one draft token, because NxD Inference loads no tree without. Got the root alone: decode "
            "without a draft."
        )
    if tree.nodes > MAX_NODES:
        raise InfeasibleError(f"nodes: expected at most {MAX_NODES}. Got {tree.nodes}: solve with a smaller --budget.")
    children = {str(node): ids for node, ids in enumerate(child_lists(tree)) if ids}
    return Written(data=f"{json.dumps(children)}\n".encode())


def read(path: Path, content: Mapping[str, object]) -> tuple[NamedTree, ...]:
    """Return the tree of parsed JSON, nodes numbered in any order; raises FormatError naming the file, node and reason."""
    children: dict[int, list[int]] = {}
    for key, value in content.items():
        node = _node(path, key)
        if node in children:
            raise FormatError(path, label(key), f"expected node {node} once. Got it twice: remove one.")
        children[node] = _ids(path, key, value)
    nodes = {0, *children}.union(*children.values())
    if len(nodes) > MAX_NODES:
        raise FormatError(path, "content", f"expected at most {MAX_NODES} nodes. Got {len(nodes)}.")
    if nodes != set(range(len(nodes))):
        missing = min(set(range(len(nodes))) - nodes)
        raise FormatError(
            path, str(missing), f"expected nodes 0 to {short(max(nodes))} without a gap. Got no {missing}."
        )
    lists = [children.get(node, []) for node in range(len(nodes))]

    def fault(node: int, reason: str) -> FormatError:
        return FormatError(path, str(node), reason)

    return (NamedTree(None, tree_of_child_lists(lists, fault, any_order=True)),)


def _node(path: Path, key: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,8}", key, re.ASCII):
        raise FormatError(path, label(key), 'unknown field. Expected the numbers of nodes, such as "0".')
    return int(key)


def _ids(path: Path, key: str, value: object) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or not set(map(type, value)) <= {int, str}:
        raise FormatError(path, key, f"expected a list of nodes. Got {short(value)}.")
    ids = [_node(path, each) if isinstance(each, str) else each for each in value]
    if ids and min(ids) < 1:
        what = "the root, which has no parent" if min(ids) == 0 else short(min(ids))
        raise FormatError(path, key, f"expected nodes of at least 1. Got {what}.")
    return ids


FORMAT = TopologyFormat(
    name="nxdi",
    title="AWS NxD Inference (--token-tree-json)",
    versions="as of 2026; untested on its hardware",
    needs="any tree of at least one draft token",
    text=True,
    write=write,
)
