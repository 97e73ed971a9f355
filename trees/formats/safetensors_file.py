"""The arrays of a tree in a safetensors file."""

import json
from pathlib import Path

import safetensors
import safetensors.numpy

from treeopt.errors import FormatError
from treeopt.files.arrays_file import Arrays
from treeopt.trees.formats.checks import MASK_NODES, short
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.formats.tree_arrays import MAX_BYTES, arrays_of_tree, tree_of_arrays
from treeopt.trees.token_tree import TokenTree

METADATA = {"format": "treeopt-tree-arrays", "version": "1"}
_ADVICE = {"format": "is it a model?", "version": "update treeopt to read it."}
_UNREADABLE = (safetensors.SafetensorError, ValueError, TypeError, KeyError, RecursionError, MemoryError)


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the file; raises InfeasibleError for trees whose mask would be too large."""
    del options, suffix
    return Written(data=_ordered(safetensors.numpy.save(arrays_of_tree(tree), METADATA)))


def read(path: Path, data: bytes) -> tuple[NamedTree, ...]:
    """Return the tree of a file's bytes; raises FormatError naming the file, the array and the reason."""
    if len(data) > MAX_BYTES:
        raise FormatError(path, "content", f"expected at most {MAX_BYTES} bytes. Got {len(data)}: is it a model?")
    try:
        arrays = Arrays(path, safetensors.numpy.load(data))
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or METADATA
    except _UNREADABLE as error:
        reason = f"expected a safetensors file ({short(str(error))}). Is it complete?"
        raise FormatError(path, "content", reason) from None
    for key, expected in METADATA.items():
        if metadata.get(key, expected) != expected:
            raise FormatError(
                path, f"metadata.{key}", f"expected {expected!r}. Got {short(metadata[key])}: {_ADVICE[key]}"
            )
    return (NamedTree(None, tree_of_arrays(arrays)),)


def _ordered(data: bytes) -> bytes:
    """Return a file with its header's keys in alphabetical order, so that equal trees give equal bytes."""
    start, end = 8, 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[start:end]), sort_keys=True, separators=(",", ":"))
    return data[:start] + header.encode().ljust(end - start) + data[end:]


FORMAT = TopologyFormat(
    name="safetensors",
    title="arrays for any framework (.safetensors)",
    versions="any safetensors",
    needs=f"any tree of at most {MASK_NODES} nodes",
    text=False,
    write=write,
)
