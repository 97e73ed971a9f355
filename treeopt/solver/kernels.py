"""The dynamic program's loops, compiled by numba; the only ones of the solver, because tables that fall do without.

They are imported where they are used: numba is slow to import.
"""

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Int32, Int64
from treeopt.compiling import watch

NEARLY = 1 - 1e-12
"""A bound that falls short by less than this share may do so by rounding."""

watch()


@njit(cache=True)
def envelope(values: Float64, first: int) -> Float64:
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
    accepted: float, child: Float64, child_bound: Float64, later: Float64, later_bound: Float64
) -> tuple[Float64, Int32, int]:
    """Return max over 1 <= m <= n of accepted * child[m] + later[n - m] for every n, where it is, and how many splits were compared.

    Args:
        accepted: probability that this child is accepted.
        child: (N + 1,) best value of its subtree with at most m nodes.
        child_bound: its envelope from 1 node on.
        later: (N,) best value of the later siblings' subtrees together.
        later_bound: its envelope.

    Each is at the least m that attains it, or at 0 where one node fewer yields as much: ties are broken toward fewer
    nodes, then toward smaller subtrees at lower ranks, so that equal input gives the same tree on every machine and no
    node is spent for nothing.
    """
    best, splits = np.zeros(len(later)), np.zeros(len(later), np.int32)
    compared = favoured = 0  # the split with the largest bound; one node more makes one side of it larger
    for n in range(1, len(later)):
        gain = accepted * (child_bound[favoured + 1] - child_bound[favoured])
        if favoured == 0 or gain >= later_bound[n - favoured] - later_bound[n - favoured - 1]:
            favoured += 1
        value, split = accepted * child[favoured] + later[n - favoured], favoured
        if value <= best[n - 1]:
            value, split = best[n - 1], 0
        low, high = favoured - 1, favoured + 1
        while low >= 1 and accepted * child_bound[low] + later_bound[n - low] > value:
            found = accepted * child[low] + later[n - low]
            if found >= value:
                value, split = found, low
            low -= 1
        while high <= n and accepted * child_bound[high] + later_bound[n - high] > value:
            found = accepted * child[high] + later[n - high]
            if found > value:
                value, split = found, high
            high += 1
        if value > best[n - 1]:
            while low >= 1 and accepted * child_bound[low] + later_bound[n - low] >= value * NEARLY:
                if accepted * child[low] + later[n - low] >= value:  # as much, by a smaller subtree
                    split = low
                low -= 1
            splits[n] = split
        compared += high - low - 1
        best[n] = value
    return best, splits, compared


@njit(cache=True)
def forests(row: Float64, below: Float64) -> tuple[Float64, Int32, int]:
    """Return W, the best forests below one node for every first rank and number of nodes, and the splits compared.

    Args:
        row: (B,) acceptance of each rank.
        below: (R, N + 1) best values of subtrees whose root has rank 0, 1, … R - 1 and beyond.

    Returns:
        (B + 1, N): entry [k, n] is the most that at most n nodes yield in the subtrees of children k, k + 1, …
        (B + 1, N): how many of them the subtree of child k has, from `share`.
    """
    best = np.zeros((len(row) + 1, below.shape[1] - 1))
    splits = np.zeros(best.shape, np.int32)
    bounds = [envelope(values, 1) for values in below]
    compared = 0
    for k in range(len(row) - 1, -1, -1):
        if row[k] == 0.0 and best[k + 1, -1] == 0.0:
            continue  # neither this child nor any later one is ever accepted
        r = min(k, len(below) - 1)
        found, where, tried = share(row[k], below[r], bounds[r], best[k + 1], envelope(best[k + 1], 0))
        for n in range(len(found)):  # a loop compiles faster than an assignment of the whole
            best[k, n], splits[k, n] = found[n], where[n]
        compared += tried
    return best, splits, compared


@njit(cache=True)
def child_sizes(row: Float64, below: Float64, nodes: Int64) -> Int64:
    """Return (len(nodes), B): the most nodes of each child's subtree below nodes with so many below them; 0 for none.

    Args:
        row: as for `forests`.
        below: as for `forests`, N more than any of `nodes`.
        nodes: int64.
    """
    _, splits, _ = forests(row, below)
    sizes = np.zeros((len(nodes), len(row)), np.int64)
    for i in range(len(nodes)):
        left = nodes[i]
        for k in range(len(row)):
            while left > 0 and splits[k, left] == 0:
                left -= 1
            sizes[i, k] = splits[k, left]
            left -= sizes[i, k]
    return sizes


@njit(cache=True)
def widths_above(row: Float64, below: Float64, widths: Int32) -> Int32:
    """Return int32 (N + 1, L + 1): internal nodes per level of the best trees of every size, from those one level below.

    Args:
        row: as for `forests`.
        below: as for `forests`.
        widths: int32 (R, N + 1, L), the same of the subtrees below.
    """
    _, splits, _ = forests(row, below)
    ranks, columns, levels = widths.shape
    forest = np.zeros((columns - 1, levels), np.int32)  # of children k, k + 1, …
    for k in range(len(row) - 1, -1, -1):
        later, child, split = forest, widths[min(k, ranks - 1)], splits[k]
        forest = np.zeros(later.shape, np.int32)
        for n in range(1, columns - 1):
            m = split[n]
            if m == 0:
                for level in range(levels):
                    forest[n, level] = forest[n - 1, level]
            else:
                for level in range(levels):
                    forest[n, level] = child[m, level] + later[n - m, level]
    here = np.zeros((columns, levels + 1), np.int32)
    for n in range(2, columns):
        here[n, 0] = max(here[n - 1, 0], min(splits[0, n - 1], 1))
        for level in range(levels):
            here[n, level + 1] = forest[n - 1, level]
    return here
