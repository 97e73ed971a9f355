"""NxD Inference's token tree: JSON in which every node names its children, `{"0": [1, 2], "1": [3]}`."""

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
    """Return the JSON, without the leaves; raises InfeasibleError for more than 65,536 nodes."""
    del options, suffix
    if tree.nodes > MAX_NODES:
        raise InfeasibleError(f"nodes: expected at most {MAX_NODES}. Got {tree.nodes}: solve with a smaller --budget.")
    children = {str(node): ids for node, ids in enumerate(child_lists(tree)) if ids or node == 0}
    return Written(data=f"{json.dumps(children)}\n".encode())


def read(path: Path, content: Mapping[str, object]) -> tuple[NamedTree, ...]:
    """Return the tree of parsed JSON; raises FormatError naming the file, the node and the reason."""
    children = {_node(path, key): _ids(path, key, value) for key, value in content.items()}
    nodes = {0, *children}.union(*children.values())
    if len(nodes) > MAX_NODES:
        raise FormatError(path, "content", f"expected at most {MAX_NODES} nodes. Got {len(nodes)}.")
    if nodes != set(range(len(nodes))):
        missing = min(set(range(len(nodes))) - nodes)
        raise FormatError(
            path, str(missing), f"expected nodes 0 to {short(max(nodes))} without a gap. Got no {missing}."
        )
    lists = [children.get(node, []) for node in range(len(nodes))]
    return (NamedTree(None, tree_of_child_lists(lists, lambda node, reason: FormatError(path, str(node), reason))),)


def _node(path: Path, key: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,8}", key, re.ASCII):
        raise FormatError(path, label(key), 'unknown field. Expected the numbers of nodes, such as "0".')
    return int(key)


def _ids(path: Path, key: str, value: object) -> list[int]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise FormatError(path, key, f"expected a list of nodes. Got {short(value)}.")
    if value and min(value) < 1:
        what = "the root, which has no parent" if min(value) == 0 else short(min(value))
        raise FormatError(path, key, f"expected nodes of at least 1. Got {what}.")
    return value


FORMAT = TopologyFormat(
    name="nxdi",
    title="AWS NxD Inference (--token-tree-json)",
    versions="as of 2026; untested on its hardware",
    needs="any tree",
    text=True,
    write=write,
)
