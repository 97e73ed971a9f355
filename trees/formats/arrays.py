"""A tree as arrays, in a numpy archive (`.npz`) or a safetensors file: `parents` and the mask of tree attention.

int32 `parents` (n,), as `TokenTree.parents`; bool `mask` (n, n), as `TokenTree.ancestor_mask`.
"""

import io
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np

from treeopt.arrays import Array
from treeopt.errors import FormatError
from treeopt.files.arrays_file import Arrays
from treeopt.files.fields import abbreviate, quote_name
from treeopt.trees.formats.topology import (
    MASK_NODES,
    TopologyFormat,
    check_mask_nodes,
    describe_difference,
)
from treeopt.trees.token_tree import TokenTree

ARRAYS = ("parents", "mask")
MAX_BYTES = 2 * MASK_NODES**2
"""Both arrays together."""
METADATA = {"format": "treeopt-tree-arrays", "version": "1"}
"""Metadata of the safetensors file."""
_ADVICE = {"format": "is it a model?", "version": "update treeopt to read it."}
_OTHER_FORMATS = {
    "treeopt-solution": "a solution. Take a tree out of it with: treeopt show FILE --budget N -o tree.json",
    "treeopt-draft-record": "a draft record, which contains no tree. Give a tree instead.",
}


def arrays_from_tree(tree: TokenTree) -> dict[str, Array]:
    """Return both arrays, little-endian; raises InfeasibleError for more than 4096 nodes."""
    check_mask_nodes(tree, MASK_NODES)
    return {"parents": tree.parents.astype("<i4"), "mask": tree.ancestor_mask}


def tree_from_arrays(arrays: Arrays) -> TokenTree:
    """Return the tree of `parents`; `mask` may be absent.

    Raises FormatError naming the file, the array and the reason, such as a mask of another tree.
    """
    for name in arrays.names:
        if name not in ARRAYS:
            raise arrays.error(
                quote_name(name), f"unknown array. A tree has {' and '.join(ARRAYS)}: is it another kind of file?"
            )
    parents = arrays.take("parents", "i", 1)
    if len(parents) > MASK_NODES:
        raise arrays.error("parents", f"expected at most {MASK_NODES} nodes. Got {len(parents)}.")
    tree = arrays.build("parents", TokenTree, parents)
    reason = describe_difference(arrays.take("mask", "b"), tree.ancestor_mask) if "mask" in arrays else None
    if reason:
        raise arrays.error("mask", f"{reason} It has to agree with parents.")
    return tree


def write_npz(tree: TokenTree) -> bytes:
    """Return the archive, uncompressed; raises InfeasibleError for more than 4096 nodes."""
    file = io.BytesIO()
    np.savez(file, **arrays_from_tree(tree))  # type: ignore[arg-type]
    return file.getvalue()


def read_npz(path: Path, data: bytes) -> TokenTree:
    """Return the tree of an archive's bytes; raises FormatError naming the file, the array and the reason."""
    start = _format_entry(data)
    for name, description in _OTHER_FORMATS.items():
        if name.encode("utf-32-le") in start:
            raise FormatError(path, "format", f"expected the arrays of a tree. Got {description}")
    return tree_from_arrays(Arrays.read(path, data, limit_bytes=MAX_BYTES))


def write_safetensors(tree: TokenTree) -> bytes:
    """Return the file; raises InfeasibleError for more than 4096 nodes."""
    import safetensors.numpy

    return _sort_header(safetensors.numpy.save(arrays_from_tree(tree), METADATA))


def read_safetensors(path: Path, data: bytes) -> TokenTree:
    """Return the tree of a file's bytes; raises FormatError naming the file, the array and the reason."""
    import safetensors
    import safetensors.numpy

    if len(data) > MAX_BYTES:
        raise FormatError(path, "content", f"expected at most {MAX_BYTES} bytes. Got {len(data)}: is it a model?")
    unreadable = (safetensors.SafetensorError, ValueError, TypeError, KeyError, RecursionError, MemoryError)
    try:
        arrays = Arrays(path, safetensors.numpy.load(data))
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or METADATA
    except unreadable as error:
        reason = f"expected a safetensors file ({abbreviate(str(error))}). Is it complete?"
        raise FormatError(path, "content", reason) from None
    for key, expected in METADATA.items():
        if metadata.get(key, expected) != expected:
            raise FormatError(
                path, f"metadata.{key}", f"expected {expected!r}. Got {abbreviate(metadata[key])}: {_ADVICE[key]}"
            )
    return tree_from_arrays(arrays)


def _format_entry(data: bytes) -> bytes:
    """Return the first bytes of the array `format`, which names the kind of treeopt's other archives."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("format.npy") as file:
            return file.read(1000)
    except (KeyError, ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return b""


def _sort_header(data: bytes) -> bytes:
    """Return a safetensors file with the keys of its header sorted, so that equal trees give equal bytes."""
    start, end = 8, 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[start:end]), sort_keys=True, separators=(",", ":"))
    return data[:start] + header.encode().ljust(end - start) + data[end:]


_NEEDS = f"any tree of at most {MASK_NODES} nodes"
NPZ = TopologyFormat(
    name="npz",
    title="arrays for numpy (.npz)",
    versions="any numpy",
    needs=_NEEDS,
    text=False,
    write=write_npz,
)
SAFETENSORS = TopologyFormat(
    name="safetensors",
    title="arrays for any framework (.safetensors)",
    versions="any safetensors",
    needs=_NEEDS,
    text=False,
    write=write_safetensors,
)
