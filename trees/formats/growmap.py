"""Growmaps: Sequoia's torch file `.pt`, and UMbreLLa's JSON (Chen et al., 2024, Sequoia, `tree_search.py`).

Both have six keys. `roots`: the nodes of each level; `branches`: the numbers of their children; `Successors`: the children
of each node; `mask` (n, n): 1 where a node attends, its ancestors and itself; `depth` (n,); `size`: n, root included.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.arrays import Array
from treeopt.errors import FormatError
from treeopt.files.fields import abbreviate, quote_name
from treeopt.files.torch_pickle import inspect_torch_file, view_tensor
from treeopt.trees.formats.adjacency import list_children, tree_from_children
from treeopt.trees.formats.topology import (
    MASK_NODES,
    TopologyFormat,
    check_mask_nodes,
    describe_difference,
)
from treeopt.trees.token_tree import TokenTree

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")
ARRAYS = ("mask", "depth")
UMBRELLA_NODES = 1024
"""A mask of 1024 nodes is 16 MB of text."""
MAX_BYTES = 8 * MASK_NODES**2 + 2_000_000
"""Largest torch file that is read."""


def growmap_from_tree(tree: TokenTree, max_nodes: int) -> dict[str, Any]:
    """Return the six keys; `mask` and `depth` are int64 arrays.

    Raises InfeasibleError for more than `max_nodes` nodes.
    """
    check_mask_nodes(tree, max_nodes)
    return {
        "roots": [list(range(level.start, level.stop)) for level in tree.levels],
        "branches": [tree.child_counts[level].tolist() for level in tree.levels],
        "Successors": list_children(tree),
        "mask": tree.ancestor_mask.astype(np.int64),
        "depth": tree.depth.astype(np.int64),
        "size": tree.nodes,
    }


def tree_from_growmap(path: Path, content: Mapping[Any, object], max_nodes: int) -> TokenTree:
    """Return the tree of the six keys, which must agree; `mask` and `depth` are arrays.

    Raises FormatError naming the file, the key and the reason.
    """
    _check_keys(path, content)
    size = content["size"]
    if type(size) is not int or not 1 <= size <= max_nodes:
        raise FormatError(path, "size", f"expected a whole number from 1 to {max_nodes}. Got {abbreviate(size)}.")
    successors = _int_lists(path, "Successors", content["Successors"], size)
    if len(successors) != size:
        raise FormatError(path, "size", f"expected {len(successors)}, the lists in Successors. Got {size}.")
    tree = tree_from_children(successors, lambda node, reason: FormatError(path, f"Successors[{node}]", reason))
    expected = growmap_from_tree(tree, max_nodes)
    for key in ("roots", "branches"):
        _check_lists(path, key, _int_lists(path, key, content[key], size), expected[key])
    for key in ("depth", "mask"):
        reason = describe_difference(_number_array(path, key, content[key]), expected[key])
        if reason:
            raise FormatError(path, key, f"{reason} Successors and {key} have to agree.")
    return tree


def _check_keys(path: Path, content: Mapping[Any, object]) -> None:
    for key in KEYS:
        if key not in content:
            raise FormatError(path, key, f"is missing. A growmap has the keys {', '.join(KEYS)}.")
    for key in content:
        if key not in KEYS:
            name = quote_name(key) if isinstance(key, str) else abbreviate(key)
            raise FormatError(path, name, f"unknown key. A growmap has only {', '.join(KEYS)}.")


def _int_lists(path: Path, key: str, value: object, limit: int) -> list[list[int]]:
    """Return at most `limit` lists with at most `limit` integers together."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise FormatError(path, key, f"expected a list of lists. Got {abbreviate(value)}.")
    entries = max(len(value), sum(map(len, value)))  # checked first, because a pickle may contain one list many times
    if entries > limit:
        raise FormatError(path, key, f"expected at most {limit} entries, the size. Got {entries}.")
    for i, row in enumerate(value):
        for j, number in enumerate(row):
            if type(number) is not int:
                raise FormatError(path, f"{key}[{i}][{j}]", f"expected a whole number. Got {abbreviate(number)}.")
    return value


def _check_lists(path: Path, key: str, actual: list[list[int]], expected: list[list[int]]) -> None:
    if len(actual) != len(expected):
        raise FormatError(path, key, f"expected {len(expected)} lists, one per level. Got {len(actual)}.")
    for i, (row, expected_row) in enumerate(zip(actual, expected, strict=True)):
        if row != expected_row:
            reason = f"expected {abbreviate(expected_row)}, which agrees with Successors. Got {abbreviate(row)}."
            raise FormatError(path, f"{key}[{i}]", reason)


def _number_array(path: Path, key: str, value: object) -> Array:
    """Return an array of numbers or booleans: a mask may have any dtype, as its values are compared."""
    if not isinstance(value, np.ndarray):
        raise FormatError(path, key, f"expected an array of numbers. Got {abbreviate(value)}.")
    return value


def write_umbrella(tree: TokenTree) -> bytes:
    """Return the JSON, byte for byte as in UMbreLLa's files; raises InfeasibleError for more than 1024 nodes."""
    content = growmap_from_tree(tree, UMBRELLA_NODES)
    content |= {key: content[key].tolist() for key in ARRAYS}
    return json.dumps(content, indent=4).encode()


def read_umbrella(path: Path, content: Mapping[str, object]) -> TokenTree:
    """Return the tree of parsed JSON; raises FormatError naming the file, the key and the reason."""
    arrays = {key: _array_of_lists(path, key, content[key]) for key in ARRAYS if key in content}
    return tree_from_growmap(path, {**content, **arrays}, UMBRELLA_NODES)


def _array_of_lists(path: Path, key: str, value: object) -> object:
    rows = value if isinstance(value, list) and key == "mask" else [value]
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            field = f"{key}[{i}]" if rows is value else key
            raise FormatError(path, field, f"expected a list of whole numbers. Got {abbreviate(row)}.")
    try:
        return np.array(value, np.int64)
    except (ValueError, OverflowError):
        raise FormatError(path, key, "expected rows of one length, of numbers below 2**63.") from None


def write_sequoia(tree: TokenTree) -> bytes:
    """Return the torch file; raises InfeasibleError for more than 4096 nodes."""
    content = growmap_from_tree(tree, MASK_NODES)
    import torch

    content |= {key: torch.from_numpy(content[key]) for key in ARRAYS}
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def read_sequoia(path: Path, data: bytes) -> TokenTree:
    """Return the tree of a torch file's bytes, saved on any device; nothing in it is executed.

    Raises FormatError naming the file, the key and the reason.
    """
    content, starts = inspect_torch_file(path, io.BytesIO(data))
    if not isinstance(content, dict):
        reason = f"expected a growmap, a dict of six keys. Got {abbreviate(content)}: is it an acceptance vector, or weights?"
        raise FormatError(path, "content", reason)
    arrays = {key: view_tensor(data, starts, content[key]) for key in ARRAYS if key in content}
    return tree_from_growmap(path, {**content, **arrays}, MASK_NODES)


SEQUOIA = TopologyFormat(
    name="sequoia",
    title="Sequoia (--growmap)",
    versions="any version",
    needs=f"any tree of at most {MASK_NODES} nodes",
    text=False,
    write=write_sequoia,
    drafters=("model",),
)
UMBRELLA = TopologyFormat(
    name="umbrella",
    title="UMbreLLa, static engine (growmap_path)",
    versions="any version",
    needs=f"any tree of at most {UMBRELLA_NODES} nodes",
    text=True,
    write=write_umbrella,
    drafters=("model",),
)
