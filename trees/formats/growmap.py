"""Growmaps: Sequoia's torch file `.pt`, and UMbreLLa's JSON (Chen et al., 2024, Sequoia, `tree_search.py`).

Both have six keys. `roots`: the nodes of each level; `branches`: how many children each of them has; `Successors`: the
children of each node; `mask` (n, n): 1 where a node attends, its ancestors and itself; `depth` (n,); `size`: n, root
included.
"""

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treeopt.errors import FormatError, InfeasibleError
from treeopt.trees.formats.adjacency import child_lists, tree_of_child_lists
from treeopt.trees.formats.topology import MASK_NODES, TopologyFormat, WriteOptions, Written, difference, label, short
from treeopt.trees.formats.torch_pickle import inspect_torch_file
from treeopt.trees.token_tree import TokenTree

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")
ARRAYS = ("mask", "depth")
UMBRELLA_NODES = 1024
"""Most nodes of UMbreLLa's file: a mask of 1024 nodes is 16 MB of text."""
MAX_BYTES = 8 * MASK_NODES**2 + 2_000_000
"""Largest torch file that is read."""


def growmap(tree: TokenTree, most_nodes: int) -> dict[str, Any]:
    """Return the six keys; `mask` and `depth` are int64 arrays.

    Raises InfeasibleError for more than `most_nodes` nodes.
    """
    if tree.nodes > most_nodes:
        raise InfeasibleError(
            f"nodes: expected at most {most_nodes}, because the file holds an n x n mask. Got {tree.nodes}: "
            "solve again with a smaller --budget."
        )
    return {
        "roots": [list(range(level.start, level.stop)) for level in tree.levels],
        "branches": [tree.child_counts[level].tolist() for level in tree.levels],
        "Successors": child_lists(tree),
        "mask": tree.ancestor_mask.astype(np.int64),
        "depth": tree.depth.astype(np.int64),
        "size": tree.nodes,
    }


def tree_of_growmap(path: Path, content: Mapping[Any, object], most_nodes: int) -> TokenTree:
    """Return the tree of the six keys, which must agree; `mask` and `depth` are arrays.

    Raises FormatError naming the file, the key and the reason.
    """
    _check_keys(path, content)
    size = content["size"]
    if type(size) is not int or not 1 <= size <= most_nodes:
        raise FormatError(path, "size", f"expected a whole number from 1 to {most_nodes}. Got {short(size)}.")
    successors = _int_lists(path, "Successors", content["Successors"], size)
    if len(successors) != size:
        raise FormatError(path, "size", f"expected {len(successors)}, the lists in Successors. Got {size}.")
    tree = tree_of_child_lists(successors, lambda node, reason: FormatError(path, f"Successors[{node}]", reason))
    expected = growmap(tree, most_nodes)
    for key in ("roots", "branches"):
        _check_lists(path, key, _int_lists(path, key, content[key], size), expected[key])
    for key in ("depth", "mask"):
        reason = difference(_int_array(path, key, content[key]), expected[key])
        if reason:
            raise FormatError(path, key, f"{reason} Successors and {key} have to agree.")
    return tree


def _check_keys(path: Path, content: Mapping[Any, object]) -> None:
    for key in KEYS:
        if key not in content:
            raise FormatError(path, key, f"is missing. A growmap has the keys {', '.join(KEYS)}.")
    for key in content:
        if key not in KEYS:
            name = label(key) if isinstance(key, str) else short(key)
            raise FormatError(path, name, f"unknown key. A growmap has only {', '.join(KEYS)}.")


def _int_lists(path: Path, key: str, value: object, most: int) -> list[list[int]]:
    """Return at most `most` lists with at most `most` integers in all."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise FormatError(path, key, f"expected a list of lists. Got {short(value)}.")
    longest = max(len(value), sum(map(len, value)))  # checked first, because a pickle may contain one list many times
    if longest > most:
        raise FormatError(path, key, f"expected at most {most} entries, the size. Got {longest}.")
    for i, row in enumerate(value):
        for j, number in enumerate(row):
            if type(number) is not int:
                raise FormatError(path, f"{key}[{i}][{j}]", f"expected a whole number. Got {short(number)}.")
    return value


def _check_lists(path: Path, key: str, found: list[list[int]], expected: list[list[int]]) -> None:
    if len(found) != len(expected):
        raise FormatError(path, key, f"expected {len(expected)} lists, one per level. Got {len(found)}.")
    for i, (row, right) in enumerate(zip(found, expected, strict=True)):
        if row != right:
            reason = f"expected {short(right)}, as Successors says. Got {short(row)}."
            raise FormatError(path, f"{key}[{i}]", reason)


def _int_array(path: Path, key: str, value: object) -> npt.NDArray[np.signedinteger[Any]]:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "i":
        found = value.dtype if isinstance(value, np.ndarray) else short(value)
        raise FormatError(path, key, f"expected an array of whole numbers. Got {found}.")
    return value


def write_umbrella(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the JSON, byte for byte as in UMbreLLa's files; raises InfeasibleError for more than 1024 nodes."""
    del options, suffix
    content = growmap(tree, UMBRELLA_NODES)
    content |= {key: content[key].tolist() for key in ARRAYS}
    return Written(data=json.dumps(content, indent=4).encode())


def read_umbrella(path: Path, content: Mapping[str, object]) -> TokenTree:
    """Return the tree of parsed JSON; raises FormatError naming the file, the key and the reason."""
    arrays = {key: _array_of_lists(path, key, content[key]) for key in ARRAYS if key in content}
    return tree_of_growmap(path, {**content, **arrays}, UMBRELLA_NODES)


def _array_of_lists(path: Path, key: str, value: object) -> object:
    rows = value if isinstance(value, list) and key == "mask" else [value]
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            field = f"{key}[{i}]" if rows is value else key
            raise FormatError(path, field, f"expected a list of whole numbers. Got {short(row)}.")
    try:
        return np.array(value, np.int64)
    except (ValueError, OverflowError):
        raise FormatError(path, key, "expected rows of one length, of numbers below 2**63.") from None


def write_sequoia(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the torch file; raises InfeasibleError for more than 4096 nodes."""
    del options, suffix
    content = growmap(tree, MASK_NODES)
    import torch

    content |= {key: torch.from_numpy(content[key]) for key in ARRAYS}
    file = io.BytesIO()
    torch.save(content, file)
    return Written(data=file.getvalue())


def read_sequoia(path: Path, data: bytes) -> TokenTree:
    """Return the tree of a torch file's bytes, saved on any device; nothing in it is executed.

    Raises FormatError naming the file, the key and the reason.
    """
    inspect_torch_file(path, io.BytesIO(data))
    content = _load(path, data)
    if not isinstance(content, dict):
        what = f"{_kind(content)}: is it an acceptance vector, or weights?"
        raise FormatError(path, "content", f"expected a growmap, a dict of six keys. Got {what}")
    arrays = {key: _array_of_tensor(content[key]) for key in ARRAYS if key in content}
    return tree_of_growmap(path, {**content, **arrays}, MASK_NODES)


def _load(path: Path, data: bytes) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001, a broken pickle may raise anything
        reason = f"expected a torch file ({type(error).__name__}). Is it complete?"
        raise FormatError(path, "content", reason) from None


def _array_of_tensor(value: Any) -> object:
    """Return a tensor as an array if numpy has its dtype, any other value unchanged."""
    import torch

    try:
        return value.detach().numpy() if isinstance(value, torch.Tensor) else value
    except (TypeError, RuntimeError):
        return value


def _kind(value: Any) -> str:
    import torch

    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else short(value)


SEQUOIA = TopologyFormat(
    name="sequoia",
    title="Sequoia (--growmap)",
    versions="all",
    needs=f"any tree of at most {MASK_NODES} nodes",
    text=False,
    write=write_sequoia,
)
UMBRELLA = TopologyFormat(
    name="umbrella",
    title="UMbreLLa, static engine (growmap_path)",
    versions="all",
    needs=f"any tree of at most {UMBRELLA_NODES} nodes",
    text=True,
    write=write_umbrella,
)
