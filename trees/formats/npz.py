"""The arrays of a tree in a numpy archive, `.npz`."""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from treeopt.errors import FormatError
from treeopt.files.arrays_file import Arrays
from treeopt.trees.formats.checks import MASK_NODES
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.formats.tree_arrays import MAX_BYTES, arrays_of_tree, tree_of_arrays
from treeopt.trees.token_tree import TokenTree

_OTHER_FILES = {
    "treeopt-solution": "a solution. Take a tree out of it with: treeopt show FILE --budget N -o tree.json",
    "treeopt-draft-record": "a draft record, which holds no tree. Give a tree instead.",
}


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the archive, uncompressed; raises InfeasibleError for trees whose mask would be too large."""
    del options, suffix
    file = io.BytesIO()
    np.savez(file, **arrays_of_tree(tree))  # type: ignore[arg-type]
    return Written(data=file.getvalue())


def read(path: Path, data: bytes) -> tuple[NamedTree, ...]:
    """Return the tree of an archive's bytes; raises FormatError naming the file, the array and the reason."""
    start = _format_entry(data)
    for name, what in _OTHER_FILES.items():
        if name.encode("utf-32-le") in start:
            raise FormatError(path, "format", f"expected the arrays of a tree. Got {what}")
    return (NamedTree(None, tree_of_arrays(Arrays.read(path, data, limit_bytes=MAX_BYTES))),)


def _format_entry(data: bytes) -> bytes:
    """Return the start of the array `format`, in which our other files say what they are; they may be large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("format.npy") as file:
            return file.read(1000)
    except (KeyError, ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return b""


FORMAT = TopologyFormat(
    name="npz",
    title="arrays for numpy (.npz)",
    versions="any numpy",
    needs=f"any tree of at most {MASK_NODES} nodes",
    text=False,
    write=write,
)
