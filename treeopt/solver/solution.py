"""The best tree for every budget and every depth of an acceptance table."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from treeopt.arguments import check_instance, check_integer, describe_value, to_int_array
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Array, Bool, Float64, Int32
from treeopt.errors import InvalidValueError
from treeopt.files.arrays_file import Arrays
from treeopt.files.atomic_files import read_bytes, write_bytes
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver.best_first import NestedTrees, grow
from treeopt.solver.dynamic_program import ValueTrees, solve_values
from treeopt.tabular import Row, Tabular
from treeopt.trees.token_tree import TokenTree

DEFAULT_MAX_DEPTH = 32
TOLERANCE = 1e-13
"""Relative increase in value below which a further node counts as rounding, and is omitted."""
Trees = NestedTrees | ValueTrees
"""Values of all trees, and trees on demand; both have the same methods."""
MAX_CELLS = 60_000_000
"""Most values of a problem: 480 MB, and several times as much during best-first growth."""
BEST_FIRST, DYNAMIC_PROGRAM = "best-first", "dynamic-program"
STATEMENTS = {
    BEST_FIRST: "all rows are non-increasing, so no node outside a tree has a larger value than a node inside",
    DYNAMIC_PROGRAM: "every split of nodes among children was compared, or ruled out by its concave envelope",
}
FORMAT = "treeopt-solution"
VERSION = 1
MAX_BYTES = 8 * MAX_CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why no tree is better: the method, and the work it did (docs/explanation/solver.md)."""

    method: str
    """`best-first` or `dynamic-program`."""
    compared: int
    """Nodes evaluated (best-first) or splits compared (dynamic program)."""
    ruled_out: int = 0
    """Splits excluded by a bound; `compared` and `ruled_out` add up to all splits."""

    @property
    def statement(self) -> str:
        """The reason in one sentence."""
        return STATEMENTS[self.method]


@dataclass(frozen=True, eq=False, repr=False)
class Solution(ArrayRecord, Tabular):
    """The optimum for every budget up to `max_nodes` and every depth up to `max_depth`; trees are built on demand."""

    _shown: ClassVar[tuple[str, ...]] = ("max_nodes", "max_depth", "certificate.method", "table")
    table: AcceptanceTable
    trees: Trees
    certificate: Certificate
    expected_tokens: Float64
    """float64 (max_depth + 1, max_nodes + 1): the most tokens per step with depth at most d, nodes at most n."""

    def __init__(self, table: AcceptanceTable, trees: Trees, certificate: Certificate) -> None:
        values = np.maximum.accumulate(np.maximum.accumulate(trees.expected_tokens, axis=0), axis=1)
        values.flags.writeable = False
        fields = {"table": table, "trees": trees, "certificate": certificate, "expected_tokens": values}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def tree_nodes(self) -> Int32:
        """int32, same shape as `expected_tokens`: nodes of each tree, the fewest that attain its value within rounding."""
        return self._smallest[0]

    @property
    def tree_depth(self) -> Int32:
        """int32, same shape: depth limit of each tree, the smallest with which `tree_nodes` nodes attain its value."""
        return self._smallest[1]

    @cached_property
    def _widths(self) -> dict[int, Int32]:
        return {}

    @cached_property
    def _smallest(self) -> tuple[Int32, Int32]:
        nodes, depth = _smallest(self.expected_tokens)
        nodes.flags.writeable = depth.flags.writeable = False
        return nodes, depth

    @property
    def max_nodes(self) -> int:
        """The largest budget solved."""
        return len(self.expected_tokens[0]) - 1

    @property
    def max_depth(self) -> int:
        """The largest depth solved."""
        return len(self.expected_tokens) - 1

    def tree(self, nodes: int, depth: int) -> TokenTree:
        """Return a best tree of at most `nodes` nodes, root included, and at most `depth` levels below the root.

        Of all trees with that value it has the fewest nodes. Raises InvalidValueError beyond `max_nodes` and `max_depth`.
        """
        index = check_integer("depth", depth, 0, self.max_depth), check_integer("nodes", nodes, 1, self.max_nodes)
        return TokenTree.ordered(self.trees.parents(int(self.tree_nodes[index]), int(self.tree_depth[index])))

    def to_records(self) -> list[Row]:
        """Return a row per budget at the largest depth limit: nodes, depth and tokens per step of the best tree."""
        columns = zip(
            self.tree_nodes[-1].tolist(), self.tree_depth[-1].tolist(), self.expected_tokens[-1].tolist(), strict=True
        )
        return [
            {"budget": budget, "nodes": nodes, "depth": depth, "tokens_per_step": tokens}
            for budget, (nodes, depth, tokens) in enumerate(columns)
            if budget > 0
        ]

    def _shown_rows(self) -> list[Row]:
        """Return the rows of budgets that are powers of two, and of the largest."""
        return [row for row in self.to_records() if row["budget"].bit_count() == 1 or row["budget"] == self.max_nodes]

    def draft_widths(self, depth: int) -> Int32:
        """Return int32 (max_nodes + 1, max_depth): internal nodes of the trees of one depth limit at each depth.

        Cached. Only the entries at a tree's own `tree_depth` and `tree_nodes` are meaningful.
        """
        if depth not in self._widths:
            self._widths[depth] = self.trees.draft_widths(depth)
        return self._widths[depth]

    def save(self, path: Path | str) -> None:
        """Write the solution file, `solution.npz`, whole or not at all (docs/explanation/solver.md).

        It returns any tree without solving again.  It is read without pickle, so nothing in it is executed.
        """
        arrays: dict[str, Array] = {
            "format": np.array(FORMAT),
            "version": np.array(VERSION),
            "p": self.table.p,
            "method": np.array(self.certificate.method),
            "compared": np.array(self.certificate.compared),
            "ruled_out": np.array(self.certificate.ruled_out),
            **_tree_arrays(self.trees),
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "Solution":
        """Read a solution file.

        Raises FormatError naming the file, the array and the reason, TreeoptError when it cannot be read.
        """
        return cls.parse(path, read_bytes(path, limit_bytes=MAX_BYTES))

    @classmethod
    def parse(cls, path: Path | str, data: bytes) -> "Solution":
        """Return the solution of a solution file's bytes; raises FormatError as `load` does."""
        arrays = Arrays.read(path, data, limit_bytes=2 * MAX_BYTES)
        if arrays.text("format") != FORMAT:
            raise arrays.error("format", f"expected {FORMAT!r}. Is it another kind of file?")
        if (version := arrays.integer("version")) != VERSION:
            raise arrays.error("version", f"expected {VERSION}. Got {version}: update treeopt to read it.")
        method = arrays.text("method")
        if method not in STATEMENTS:
            raise arrays.error("method", f"expected one of {', '.join(STATEMENTS)}. Got {method!r}.")
        table = arrays.build("p", AcceptanceTable, arrays.take("p", "f"))
        trees = _read_nested(arrays, table) if method == BEST_FIRST else _read_values(arrays, table)
        certificate = Certificate(
            method=method, compared=arrays.integer("compared"), ruled_out=arrays.integer("ruled_out")
        )
        return arrays.build("values", cls, table, trees, certificate)


def solve(
    table: AcceptanceTable,
    max_nodes: int = 512,
    max_depth: int | None = None,
    *,
    level_widths: int | Sequence[int] | None = None,
    draft_widths: int | Sequence[int] | None = None,
) -> Solution:
    """Solve for the best tree of every budget up to `max_nodes` and every depth up to `max_depth`, exactly.

    Args:
        table: acceptance per depth and rank; rows need not be monotone.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels below the root; by default the table's depth, or 32 for a table of one row. A tree of n nodes
            has at most n - 1 levels.
        level_widths: most nodes at depth 1, 2, …; one number holds for every depth.
        draft_widths: most internal nodes, which the drafter runs on, at depth 0, 1, …; one number holds for every depth.

    Non-increasing rows are solved best-first in O(D N (B + log N)); others by a dynamic program in at worst O(D^2 B N^2), in
    practice about O(D^2 B N). Memory is O(D N), or O(D^2 N) for the dynamic program.
    Raises InvalidValueError for sizes out of range, problems too large, and width limits on a table whose rows are not
    monotone or depend on the parent's rank; InfeasibleError for depths without measurements.

    >>> solution = solve(AcceptanceTable([0.7, 0.2]), max_nodes=4, max_depth=3)
    >>> solution.expected_tokens[3].round(3).tolist()
    [0.0, 1.0, 1.7, 2.19, 2.533]
    >>> solution.tree(nodes=4, depth=2).parents.tolist(), solution.certificate.method
    ([-1, 0, 0, 1], 'best-first')
    """
    check_instance("table", table, AcceptanceTable, "make one with treeopt.AcceptanceTable(p)")
    if max_depth is None:
        max_depth = table.max_depth or DEFAULT_MAX_DEPTH
    max_nodes = check_integer("max_nodes", max_nodes, 1, MAX_CELLS)
    max_depth = check_integer("max_depth", max_depth, 0, MAX_CELLS)
    rows_cells = max_depth * table.parent_ranks * table.branching
    _check_size(max_nodes, max_depth, max(rows_cells, (max_depth + 1) * (max_nodes + 1)))
    limited = level_widths is not None or draft_widths is not None
    level_limits = _limits("level_widths", level_widths, max_depth, max_nodes)
    draft_limits = _limits("draft_widths", draft_widths, max_depth, max_nodes)
    rows = table.rows(max_depth)
    non_increasing = bool(np.all(rows[..., 1:] <= rows[..., :-1]))
    if non_increasing and not (limited and table.parent_ranks > 1):
        parent, rank, reach, _, order, evaluated = grow(rows, max_nodes, level_limits, draft_limits)
        return Solution(
            table, NestedTrees(parent, rank, reach, order), Certificate(method=BEST_FIRST, compared=evaluated)
        )
    if limited:
        name, widths = ("draft_widths", draft_widths) if level_widths is None else ("level_widths", level_widths)
        why = (
            "where acceptance depends on the parent's rank"
            if non_increasing
            else "where a higher rank is accepted more often"
        )
        raise InvalidValueError(
            f"{name}: expected none {why}, because no exact method for that is fast. Got {widths!r:.60}: smooth the table "
            "(without --raw), or leave the limit out.",
            field=name,
        )
    subtrees = table.parent_ranks * (max_depth + 1) * (max_depth + 2) // 2
    _check_size(max_nodes, max_depth, subtrees * (max_nodes + 1))
    values, compared, ruled_out = solve_values(np.ascontiguousarray(rows), max_nodes)
    return Solution(table, values, Certificate(method=DYNAMIC_PROGRAM, compared=compared, ruled_out=ruled_out))


def _smallest(values: Float64) -> tuple[Int32, Int32]:
    """Return, for every depth and budget, the fewest nodes and then levels with the same value within the tolerance.

    Rounding may allow still fewer nodes with fewer levels, so both are reduced until neither changes.
    """
    fewest, least = first_of_equals(values), first_of_equals(values.T).T
    grid = np.indices(values.shape, np.int32)
    depth, nodes = grid[0], grid[1]
    while True:
        fewer = fewest[depth, nodes]
        shallower = least[depth, fewer]
        if np.array_equal(fewer, nodes) and np.array_equal(shallower, depth):
            return nodes, depth
        nodes, depth = fewer, shallower


def first_of_equals(values: Float64) -> Int32:
    """Return, for every entry of non-decreasing rows, the first column with the same value within the tolerance.

    Sums of the same values in another order differ by rounding, which is no reason for a node.
    """
    more = values[:, 1:] > values[:, :-1] * (1 + TOLERANCE)
    begins = np.concatenate([np.ones((len(values), 1), np.bool_), more], axis=1)
    first = _last_true(begins)
    exceeding = values > np.take_along_axis(values, first, axis=1) * (1 + TOLERANCE)
    for row in np.flatnonzero(exceeding.any(axis=1)).tolist():  # small steps add up
        starts = np.append(np.flatnonzero(begins[row]), values.shape[1])
        for run in np.unique(np.searchsorted(starts, np.flatnonzero(exceeding[row]), side="right")).tolist():
            begin, end = starts[run - 1], starts[run]
            while begin < end:
                begins[row, begin] = True
                begin += np.searchsorted(values[row, begin:end], values[row, begin] * (1 + TOLERANCE), side="right")
    return _last_true(begins)


def _last_true(begins: Bool) -> Int32:
    """Return, for every entry of rows that begin with True, the column of the last True up to it."""
    columns = np.arange(begins.shape[1], dtype=np.int32)
    return np.maximum.accumulate(np.where(begins, columns, np.int32(0)), axis=1)


def _limits(name: str, limits: int | Sequence[int] | None, max_depth: int, max_nodes: int) -> Int32:
    try:
        numbers = to_int_array(name, [max_nodes if limits is None else limits])[0]
        widths = np.full(max_depth, numbers) if numbers.ndim == 0 else numbers
    except InvalidValueError:
        widths = None
    if widths is None or widths.shape != (max_depth,) or np.any(widths < 1):
        raise InvalidValueError(
            f"{name}: expected a whole number of at least 1, or {max_depth} of them, one per depth. Got {describe_value(limits)}.",
            field=name,
        )
    return np.asarray(np.minimum(widths, max_nodes), np.int32)


def _check_size(max_nodes: int, max_depth: int, cells: int) -> None:
    if cells > MAX_CELLS:
        raise InvalidValueError(
            f"max_nodes, max_depth: {max_nodes} x {max_depth} needs more than {MAX_CELLS} values. Ask for fewer.",
            field="max_nodes, max_depth",
        )


def _tree_arrays(trees: Trees) -> dict[str, Array]:
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
