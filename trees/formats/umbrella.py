"""UMbreLLa's static trees: the six keys of Sequoia's growmaps as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from treeopt.errors import FormatError
from treeopt.trees.formats.checks import short
from treeopt.trees.formats.growmap import ARRAYS, growmap, tree_of_growmap
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.token_tree import TokenTree

MAX_NODES = 1024
"""A mask of so many nodes is 16 MB of text."""


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the JSON as UMbreLLa's own files have it, byte for byte; raises InfeasibleError for larger trees."""
    del options, suffix
    content = growmap(tree, MAX_NODES)
    content |= {key: content[key].tolist() for key in ARRAYS}
    return Written(data=json.dumps(content, indent=4).encode())


def read(path: Path, content: Mapping[str, object]) -> tuple[NamedTree, ...]:
    """Return the tree of parsed JSON; raises FormatError naming the file, the key and the reason."""
    arrays = {key: _array(path, key, content[key]) for key in ARRAYS if key in content}
    return (NamedTree(None, tree_of_growmap(path, {**content, **arrays}, MAX_NODES)),)


def _array(path: Path, key: str, value: object) -> object:
    rows = value if isinstance(value, list) and key == "mask" else [value]
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            field = f"{key}[{i}]" if rows is value else key
            raise FormatError(path, field, f"expected a list of whole numbers. Got {short(row)}.")
    try:
        return np.array(value, np.int64)
    except (ValueError, OverflowError):
        raise FormatError(path, key, "expected rows of one length, of numbers below 2**63.") from None


FORMAT = TopologyFormat(
    name="umbrella",
    title="UMbreLLa, static engine (growmap_path)",
    versions="all",
    needs=f"any tree of at most {MAX_NODES} nodes",
    text=True,
    write=write,
)
