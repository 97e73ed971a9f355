"""The exact dynamic program, for any table: rows may rise, hold zeros, spike, and depend on the parent's rank.

Values are relative to the subtree's own root, so a subtree's value does not depend on what lies above it:

    V[d, h, n] = 1 + W[0, n - 1]                                        subtree at depth d, at most h levels, n nodes
    W[k, n] = max over 1 <= m <= n of  P[d, k] V[d + 1, h - 1, m] + W[k + 1, n - m]         children k, k + 1, …

(Chen et al., 2024, Algorithm 1, carried to one row per depth and to at most n nodes.)  Trying every m costs N^2 per
rank.  But no value lies above its concave envelope, and the sum of two envelopes only falls away from its largest
term.  So the splits are tried outward from there, until the envelopes cannot beat the best split found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from numba import njit

from treeopt.array_record import ArrayRecord

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@njit(cache=True)
def envelope(values: FloatArray, first: int) -> FloatArray:
    """Return the least concave function that lies nowhere below `values[first:]` (Andrew, 1979); 0 before `first`."""
    bound = np.zeros(len(values))
    corners = np.empty(len(values), np.int64)
    count = 0
    for i in range(first, len(values)):
        while count >= 2:
            left, middle = corners[count - 2], corners[count - 1]
            if (values[middle] - values[left]) * (i - left) > (values[i] - values[left]) * (middle - left):
                break
            count -= 1  # the middle lies on or below the line
        corners[count] = i
        count += 1
    for corner in range(count):
        left, right = corners[corner], corners[min(corner + 1, count - 1)]
        for i in range(left, right):
            bound[i] = values[left] + (values[right] - values[left]) * ((i - left) / (right - left))
        bound[right] = values[right]
    return bound


@njit(cache=True)
def share(
    accepted: float, child: FloatArray, child_bound: FloatArray, later: FloatArray, later_bound: FloatArray
) -> tuple[FloatArray, int]:
    """Return max over 1 <= m <= n of accepted * child[m] + later[n - m] for every n, and the splits compared.

    Args:
        accepted: probability that this child is accepted.
        child: (N + 1,) best value of its subtree with at most m nodes.
        child_bound: its envelope from 1 node on.
        later: (N,) best value of the later siblings' subtrees together.
        later_bound: its envelope.
    """
    best = np.zeros(len(later))
    compared = 0
    favoured = 0  # the split with the largest bound; one node more makes one side of it larger
    for n in range(1, len(later)):
        gain = accepted * (child_bound[favoured + 1] - child_bound[favoured])
        if favoured == 0 or gain >= later_bound[n - favoured] - later_bound[n - favoured - 1]:
            favoured += 1
        value = max(best[n - 1], accepted * child[favoured] + later[n - favoured])
        m = favoured - 1
        while m >= 1 and accepted * child_bound[m] + later_bound[n - m] > value:
            value = max(value, accepted * child[m] + later[n - m])
            m -= 1
        compared += favoured - m
        m = favoured + 1
        while m <= n and accepted * child_bound[m] + later_bound[n - m] > value:
            value = max(value, accepted * child[m] + later[n - m])
            m += 1
        compared += m - favoured - 1
        best[n] = value
    return best, compared


@njit(cache=True)
def forests(row: FloatArray, below: FloatArray) -> tuple[FloatArray, int]:
    """Return W, the best forests below one node for every first rank and number of nodes, and the splits compared.

    Args:
        row: (B,) acceptance of each rank.
        below: (R, N + 1) best values of subtrees whose root has rank 0, 1, … R - 1 and beyond.

    Returns:
        (B + 1, N): entry [k, n] is the most that at most n nodes yield in the subtrees of children k, k + 1, …
    """
    nodes = below.shape[1] - 1
    best = np.zeros((len(row) + 1, nodes))
    bounds = np.empty_like(below)
    for r in range(len(below)):
        bounds[r] = envelope(below[r], 1)
    compared = 0
    for k in range(len(row) - 1, -1, -1):
        if row[k] == 0.0 and best[k + 1, -1] == 0.0:
            continue  # neither this child nor any later one is ever accepted
        r = min(k, len(below) - 1)
        best[k], tried = share(row[k], below[r], bounds[r], best[k + 1], envelope(best[k + 1], 0))
        compared += tried
    return best, compared


@njit(cache=True)
def share_out(row: FloatArray, below: FloatArray, forest: FloatArray, nodes: int, sizes: npt.NDArray[np.int64]) -> int:
    """Write how the best forest of at most `nodes` nodes shares them out; return the number of children.

    Args:
        row: as for `forests`.
        below: as for `forests`.
        forest: what it returned.
        nodes: at most N - 1.
        sizes: (B,), receives the most nodes of each child's subtree, in rank order.

    Ties are broken toward fewer nodes, then toward smaller subtrees at lower ranks, so that equal input gives the
    same tree on every machine and no node is spent for nothing.
    """
    left, k = nodes, 0
    while k < len(row):
        while left > 0 and forest[k, left - 1] == forest[k, left]:
            left -= 1
        if left == 0:
            break
        child, m = below[min(k, len(below) - 1)], 1
        while row[k] * child[m] + forest[k + 1, left - m] < forest[k, left]:
            m += 1
        sizes[k] = m
        left -= m
        k += 1
    return k


@njit(cache=True)
def child_sizes(row: FloatArray, below: FloatArray, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return (len(nodes), B): the most nodes of each child's subtree below nodes with so many below them; 0 for none."""
    forest = forests(row, below[:, : nodes.max() + 2])[0]
    sizes = np.zeros((len(nodes), len(row)), np.int64)
    for i in range(len(nodes)):
        share_out(row, below, forest, nodes[i], sizes[i])
    return sizes


@njit(cache=True)
def widths_above(row: FloatArray, below: FloatArray, widths: IntArray) -> IntArray:
    """Return int32 (N + 1, D): internal nodes per level of the best trees of every size, from those one level below.

    Args:
        row: as for `forests`.
        below: as for `forests`.
        widths: int32 (R, N + 1, D), the same of the subtrees below.
    """
    forest = forests(row, below)[0]
    here = np.zeros(widths.shape[1:], np.int32)
    sizes = np.zeros(len(row), np.int64)
    for n in range(1, len(here)):
        count = share_out(row, below, forest, n - 1, sizes)
        here[n, 0] = min(count, 1)
        for k in range(count):
            here[n, 1:] += widths[min(k, len(widths) - 1), sizes[k], :-1]
    return here


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValueTrees(ArrayRecord):
    """The dynamic program's values; trees are read back from them, without solving again."""

    rows: FloatArray
    """float64 (D, R, B)."""
    values: tuple[FloatArray, ...]
    """For h = 0 … D: float64 (D + 1 - h, R, N + 1), V[d, h, n] for every depth d and rank of the subtree's root.

    Where all rows are equal, every depth's values are, and the first axis has length 1.
    """

    @property
    def expected_tokens(self) -> FloatArray:
        """float64 (D + 1, N + 1): the most tokens per step with depth at most d and at most n nodes."""
        return np.maximum.accumulate([values[0, 0] for values in self.values], axis=0)

    def parents(self, nodes: int, depth: int) -> list[int]:
        """Return the parents of one tree, each before its children, siblings in rank order."""
        parents, level = [-1], [(nodes, 0)]  # nodes and rank of each subtree
        for d in range(depth):
            first = len(parents) - len(level)
            shares = self._shares(d, depth - d - 1, level)
            parents.extend(first + i for i, shared in enumerate(shares) for _ in shared)
            level = list(chain.from_iterable(shares))
        return parents

    def draft_widths(self) -> IntArray:
        """Return int32 (D + 1, N + 1, D): internal nodes at each depth of each tree."""
        levels, ranks, nodes = len(self.rows), self.rows.shape[1], self.values[0].shape[2]
        result = np.zeros((levels + 1, nodes, levels), np.int32)
        for depth in range(1, levels + 1):
            widths = np.zeros((ranks, nodes, levels), np.int32)
            for d in range(depth - 1, -1, -1):
                below = self._below(d, depth - d - 1)
                widths = np.stack([widths_above(row, below, widths) for row in self.rows[d][: 1 if d == 0 else None]])
            result[depth] = widths[0]
        return result

    def _below(self, d: int, h: int) -> FloatArray:
        """Return float64 (R, N + 1): values of subtrees that hang below a node of depth d, at most h levels deep."""
        values = self.values[h]
        return np.asarray(values[min(d + 1, len(values) - 1)])

    def _shares(self, d: int, h: int, level: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Return the nodes and rank of every child's subtree, for each subtree of a level."""
        below, last = self._below(d, h), self.rows.shape[1] - 1
        shares = {}
        for r in {min(rank, last) for _, rank in level}:
            sizes = sorted({size for size, rank in level if min(rank, last) == r})
            shared = child_sizes(self.rows[d, r], below, np.array(sizes) - 1)
            for size, row in zip(sizes, shared.tolist(), strict=True):
                shares[size, r] = [(nodes, k) for k, nodes in enumerate(row) if nodes]
        return [shares[size, min(rank, last)] for size, rank in level]


def solve_values(rows: FloatArray, max_nodes: int) -> tuple[ValueTrees, int, int]:
    """Return the values of every subtree, the splits compared and the splits ruled out by their bounds.

    Args:
        rows: float64 (D, R, B), any order.
        max_nodes: N.
    """
    levels, ranks, _ = rows.shape
    same = bool(np.all(rows == rows[:1]))
    leaf = np.ones(max_nodes + 1)
    leaf[0] = 0.0
    values = [np.broadcast_to(leaf, (1 if same else levels + 1, ranks, max_nodes + 1)).copy()]
    compared = ruled_out = 0
    for h in range(1, levels + 1):
        here = np.zeros((1 if same else levels + 1 - h, ranks, max_nodes + 1))
        for d in range(len(here)):
            below = values[h - 1][0 if same else d + 1]
            if h > 1 and np.array_equal(below, values[h - 2][0 if same else d + 1]):
                here[d] = values[h - 1][d]  # no tree of so few nodes reaches the new level
                continue
            for r in range(ranks if d > 0 or same else 1):  # the root has no rank but 0
                forest, tried = forests(rows[d, r], below)
                here[d, r, 1:] = 1.0 + forest[0]
                compared += tried
                ruled_out += rows.shape[2] * (max_nodes * (max_nodes - 1) // 2) - tried
        values.append(here)
    return ValueTrees(rows, tuple(values)), compared, ruled_out
