"""The solution file, `solution.npz`: the result of the solver, which returns any tree without solving again.

A numpy archive of format, version, acceptance table, certificate, and the arrays of the method.
It is read without pickle, so nothing in it is executed, and every index is checked.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from treeopt.arrays import Array
from treeopt.files.arrays_file import Arrays
from treeopt.files.atomic_files import read_bytes, write_bytes
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver.best_first import NestedTrees
from treeopt.solver.certificate import (
    BEST_FIRST,
    DYNAMIC_PROGRAM,
    MAX_CELLS,
    STATEMENTS,
    Certificate,
    Trees,
)
from treeopt.solver.dynamic_program import ValueTrees

T = TypeVar("T")
Build = Callable[[AcceptanceTable, Trees, Certificate], T]

FORMAT = "treeopt-solution"
VERSION = 1
MAX_BYTES = 8 * MAX_CELLS


def save(path: Path | str, table: AcceptanceTable, trees: Trees, certificate: Certificate) -> None:
    """Write the solution file whole or not at all."""
    arrays: dict[str, Array] = {
        "format": np.array(FORMAT),
        "version": np.array(VERSION),
        "p": table.p,
        "method": np.array(certificate.method),
        "compared": np.array(certificate.compared),
        "ruled_out": np.array(certificate.ruled_out),
        **_arrays(trees),
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def load(path: Path | str, build: Build[T]) -> T:
    """Return `build(table, trees, certificate)` of a file.

    Raises FormatError naming the file, the array and the reason, TreeoptError when it cannot be read.
    """
    return parse(path, read_bytes(path, limit_bytes=MAX_BYTES), build)


def parse(path: Path | str, data: bytes, build: Build[T]) -> T:
    """Return `build(table, trees, certificate)` of a file's bytes; raises FormatError as `load` does."""
    arrays = Arrays.read(path, data, limit_bytes=2 * MAX_BYTES)
    if arrays.text("format") != FORMAT:
        raise arrays.error("format", f"expected {FORMAT!r}. Is it another kind of file?")
    if (version := arrays.integer("version")) != VERSION:
        raise arrays.error("version", f"expected {VERSION}. Got {version}: update treeopt to read it.")
    method = arrays.text("method")
    if method not in STATEMENTS:
        raise arrays.error("method", f"expected one of {', '.join(STATEMENTS)}. Got {method!r}.")
    table = arrays.build("p", AcceptanceTable, arrays.take("p", "f"))
    trees = _READ[method](arrays, table)
    certificate = Certificate(
        method=method,
        compared=arrays.integer("compared"),
        ruled_out=arrays.integer("ruled_out"),
    )
    return arrays.build("values", build, table, trees, certificate)


def _arrays(trees: Trees) -> dict[str, Array]:
    if isinstance(trees, NestedTrees):
        return {"parent": trees.parent, "rank": trees.rank, "reach": trees.reach, "order": trees.order}
    return {f"values_{h}": values for h, values in enumerate(trees.values)}


def _read_nested(arrays: Arrays, table: AcceptanceTable) -> Trees:
    reach = arrays.take("reach", "f", 1)
    parent = arrays.indices("parent", 1, -1, len(reach))
    rank = arrays.indices("rank", 1, 0, table.branching)
    order = arrays.indices("order", 2, -1, len(reach))
    nodes = np.arange(1, len(reach))
    if not len(parent) == len(rank) == len(reach) > 0:
        raise arrays.error("parent", "expected as many as in rank and reach, at least one.")
    if parent[0] != -1 or np.any((parent[1:] < 0) | (parent[1:] >= nodes)):
        raise arrays.error("parent", "expected -1 and then, for every node, a parent before it.")
    for row in order:
        position = np.full(len(reach), len(row))
        listed = row[row >= 0]
        position[listed] = np.arange(len(listed))
        if (
            len(row) == 0
            or row[0] != 0
            or len(np.unique(listed)) < len(listed)
            or np.any(position[parent[listed[1:]]] >= position[listed[1:]])
        ):
            raise arrays.error("order", "expected every node once, after its parent.")
    return NestedTrees(parent, rank, reach, order)


def _read_values(arrays: Arrays, table: AcceptanceTable) -> Trees:
    values = [np.ascontiguousarray(arrays.take("values_0", "f", 3))]
    while f"values_{len(values)}" in arrays:
        values.append(np.ascontiguousarray(arrays.take(f"values_{len(values)}", "f", 3)))
    depth = len(values) - 1
    if table.max_depth is not None and depth > table.max_depth:
        raise arrays.error("p", f"expected rows to depth {depth}. Got {table.max_depth}.")
    for h, array in enumerate(values):
        shapes = [(count, table.parent_ranks, values[0].shape[2]) for count in (1, depth + 1 - h)]
        if array.shape != shapes[len(values[0]) > 1] or values[0].shape[2] < 2:
            raise arrays.error(f"values_{h}", f"expected shape {shapes[0]} or {shapes[1]}. Got {array.shape}.")
    return ValueTrees(np.ascontiguousarray(table.rows(depth)), tuple(values))


_READ: dict[str, Callable[[Arrays, AcceptanceTable], Trees]] = {
    BEST_FIRST: _read_nested,
    DYNAMIC_PROGRAM: _read_values,
}
