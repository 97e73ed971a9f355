"""From an acceptance table to the best tree for every budget and every depth."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.acceptance import AcceptanceTable
from treeopt.errors import InvalidValueError
from treeopt.solver import kernels
from treeopt.trees import TokenTree

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

DEFAULT_MAX_DEPTH = 32
MAX_CELLS = 40_000_000
"""Values kept at once, (max_depth + 1)^2 (max_nodes + 1): 320 MB."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Solution:
    """The optimum for every budget up to `max_nodes` and every depth up to `max_depth`; trees are made on demand."""

    table: AcceptanceTable
    values: FloatArray
    """float64 (max_depth + 1, max_depth + 1, max_nodes + 1); see `treeopt.solver.kernels.values`."""
    tree_nodes: IntArray
    """int32 (max_depth + 1, max_nodes + 1): nodes that the tree of each depth and budget really has."""
    draft_widths: IntArray
    """int32 (max_depth + 1, max_nodes + 1, max_depth): its internal nodes at each depth; see `TokenTree.draft_widths`."""

    @property
    def max_nodes(self) -> int:
        """The largest budget solved."""
        return int(self.values.shape[2]) - 1

    @property
    def max_depth(self) -> int:
        """The largest depth solved."""
        return int(self.values.shape[0]) - 1

    @property
    def expected_tokens(self) -> FloatArray:
        """float64 (max_depth + 1, max_nodes + 1): the most tokens per step with depth at most d, nodes at most n."""
        return np.asarray(self.values[0])

    def tree(self, nodes: int, depth: int) -> TokenTree:
        """Return a best tree of at most `nodes` nodes, root included, and at most `depth` levels below the root.

        It has fewer nodes where more would not be accepted.  Raises InvalidValueError outside what was solved.
        """
        _within("nodes", nodes, 1, self.max_nodes)
        _within("depth", depth, 0, self.max_depth)
        rows = self.table.rows(self.max_depth)
        shares: dict[tuple[int, int], list[int]] = {}  # equal subtrees at one depth are worked out once
        parents, level = [-1], [nodes]
        for d in range(depth):
            below: list[int] = []
            first = len(parents) - len(level)
            for node, size in enumerate(level, start=first):
                if (d, size) not in shares:
                    subtree = self.values[d + 1, depth - d - 1]
                    shares[d, size] = kernels.child_sizes(rows[d], subtree, size - 1).tolist()
                below.extend(shares[d, size])
                parents.extend([node] * len(shares[d, size]))
            level = below
        return TokenTree(parents)


def solve(table: AcceptanceTable, max_nodes: int = 512, max_depth: int | None = None) -> Solution:
    """Solve for the best tree of every budget up to `max_nodes` and every depth up to `max_depth`, exactly.

    Args:
        table: acceptance per depth and rank, rising or falling, with or without zeros.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels below the root; by default all that the table measured, or 32 when one row holds for
            every depth.  No tree of n nodes is deeper than n - 1.

    Time O(D B N^2) when one row holds for every depth, O(D^2 B N^2) otherwise; memory O(D^2 N).
    Raises InvalidValueError for sizes below the least and problems too large, InfeasibleError for depths never measured.

    >>> solution = solve(AcceptanceTable([0.7, 0.2]), max_nodes=4, max_depth=3)
    >>> solution.expected_tokens[3].round(3).tolist()
    [0.0, 1.0, 1.7, 2.19, 2.533]
    >>> solution.tree(nodes=4, depth=2).parents.tolist()
    [-1, 0, 0, 1]
    """
    if max_depth is None:
        max_depth = table.max_depth or DEFAULT_MAX_DEPTH
    _within("max_nodes", max_nodes, 1, MAX_CELLS)
    _within("max_depth", max_depth, 0, MAX_CELLS)
    if (max_depth + 1) ** 2 * (max_nodes + 1) > MAX_CELLS:
        raise InvalidValueError(
            f"max_nodes, max_depth: {max_nodes} x {max_depth} needs more than {MAX_CELLS} values. Ask for fewer."
        )
    rows = np.ascontiguousarray(table.rows(max_depth))
    values = kernels.values(rows, table.position_invariant, max_nodes)
    sizes, widths = kernels.shapes(rows, table.position_invariant, values)
    for array in (values, sizes, widths):
        array.flags.writeable = False
    return Solution(table=table, values=values, tree_nodes=sizes, draft_widths=widths)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidValueError(f"{name}: expected {least} to {most}. Got {value}.")
