"""The exact dynamic program for any table: rows need not be monotone, may contain zeros, and may depend on the parent's rank.

Values are relative to the subtree's root, so a subtree's value does not depend on its ancestors:

    V[d, h, n] = 1 + W[0, n - 1]                                        subtree at depth d, at most h levels, n nodes
    W[k, n] = max over 1 <= m <= n of  P[d, k] V[d + 1, h - 1, m] + W[k + 1, n - m]         children k, k + 1, …

(Chen et al., 2024, Algorithm 1, extended to one row per depth and to at most n nodes.) Trying every m costs N^2 per rank.
But concave envelopes bound the values, and the sum of two envelopes is concave in m. So splits are tried outward from its
maximum, until the bound is below the best split. The loops are in `treeopt.solver.kernels`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValueTrees(ArrayRecord):
    """The values of the dynamic program, from which trees are reconstructed without solving again."""

    rows: Float64
    """float64 (D, R, B)."""
    values: tuple[Float64, ...]
    """For h = 0 … D: float64 (D + 1 - h, R, N + 1), V[d, h, n] for every depth d and rank of the subtree's root.

    If all rows are equal, so are the values of all depths, and the first axis has length 1.
    """

    @property
    def expected_tokens(self) -> Float64:
        return np.maximum.accumulate([values[0, 0] for values in self.values], axis=0)

    def parents(self, nodes: int, depth: int) -> list[int]:
        parents, level = [-1], [(nodes, 0)]  # nodes and rank of each subtree
        for d in range(depth):
            first = len(parents) - len(level)
            children = self._split(d, depth - d - 1, level)
            parents.extend(first + i for i, subtrees in enumerate(children) for _ in subtrees)
            level = list(chain.from_iterable(children))
        return parents

    def draft_widths(self, depth: int) -> Int32:
        from treeopt.solver.kernels import widths_above

        levels, ranks, nodes = len(self.rows), self.rows.shape[1], self.values[0].shape[2]
        widths = np.zeros((ranks, nodes, 0), np.int32)
        for d in range(depth - 1, -1, -1):
            below = self._below(d, depth - d - 1)
            widths = np.stack([widths_above(row, below, widths) for row in self.rows[d][: 1 if d == 0 else None]])
        return np.pad(widths[0], [(0, 0), (0, levels - depth)])

    def _below(self, d: int, h: int) -> Float64:
        """Return float64 (R, N + 1): values of the subtrees below a node of depth d, at most h levels deep."""
        values = self.values[h]
        return np.asarray(values[min(d + 1, len(values) - 1)])

    def _split(self, d: int, h: int, level: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Return nodes and rank of every child's subtree, for each subtree of a level, given by nodes and rank."""
        from treeopt.solver.kernels import child_sizes

        below, last = self._below(d, h), self.rows.shape[1] - 1
        children = {}
        for r in {min(rank, last) for _, rank in level}:
            sizes = sorted({size for size, rank in level if min(rank, last) == r})
            needed = np.ascontiguousarray(below[:, : sizes[-1] + 1])
            split = child_sizes(self.rows[d, r], needed, np.array(sizes) - 1)
            for size, row in zip(sizes, split.tolist(), strict=True):
                children[size, r] = [(nodes, k) for k, nodes in enumerate(row) if nodes]
        return [children[size, min(rank, last)] for size, rank in level]


def solve_values(rows: Float64, max_nodes: int) -> tuple[ValueTrees, int, int]:
    """Return the values of all subtrees for rows (D, R, B) in any order, and the splits compared and ruled out."""
    from treeopt.solver.kernels import forests

    levels, ranks, _ = rows.shape
    same = bool(np.all(rows == rows[:1]))
    leaf = np.ones(max_nodes + 1)
    leaf[0] = 0.0
    values = [np.broadcast_to(leaf, (1 if same else levels + 1, ranks, max_nodes + 1)).copy()]
    compared = ruled_out = 0
    for h in range(1, levels + 1):
        subtrees = np.zeros((1 if same else levels + 1 - h, ranks, max_nodes + 1))
        for d in range(len(subtrees)):
            below = values[h - 1][0 if same else d + 1]
            if h > 1 and np.array_equal(below, values[h - 2][0 if same else d + 1]):
                subtrees[d] = values[h - 1][d]  # no tree of at most N nodes reaches the new level
                continue
            for r in range(ranks if d > 0 or same else 1):  # the root has rank 0
                forest, _, splits = forests(rows[d, r], below)
                subtrees[d, r, 1:] = 1.0 + forest[0]
                compared += int(splits)  # a numpy integer without numba
                ruled_out += rows.shape[2] * (max_nodes * (max_nodes - 1) // 2) - int(splits)
        values.append(subtrees)
    return ValueTrees(rows, tuple(values)), compared, ruled_out
