"""Numba kernels of the dynamic program; monotone tables need none.

Import this module in functions only: numba is slow to import.
"""

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Int32, Int64
from treeopt.compiling import watch_compilation

NEARLY = 1 - 1e-12
"""Relative slack for rounding, when a bound is compared with a value."""

watch_compilation()


@njit(cache=True)
def envelope(values: Float64, first: int) -> Float64:
    """Return the concave envelope of `values[first:]`, float64 like `values`; 0 before `first` (Andrew, 1979)."""
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
def best_splits(
    accepted: float, child: Float64, child_bound: Float64, later: Float64, later_bound: Float64
) -> tuple[Float64, Int32, int]:
    """Return the (max, +) convolution of a child and its later siblings.

    For every n: the largest accepted * child[m] + later[n - m] over 1 <= m <= n, float64 (N,); its m, int32 (N,); and the
    number of splits compared.

    Args:
        accepted: probability that this child is accepted.
        child: float64 (N + 1,), best value of its subtree with at most m nodes.
        child_bound: its envelope from 1 node on.
        later: float64 (N,), best value of the later siblings' subtrees together.
        later_bound: its envelope.

    Ties are broken toward fewer nodes (m = 0 where one node fewer is as good), then toward smaller subtrees at lower ranks,
    so equal input gives the same tree on every machine.
    """
    best, splits = np.zeros(len(later)), np.zeros(len(later), np.int32)
    compared = peak = 0  # the split with the largest bound; one more node enlarges one side of it
    for n in range(1, len(later)):
        gain = accepted * (child_bound[peak + 1] - child_bound[peak])
        if peak == 0 or gain >= later_bound[n - peak] - later_bound[n - peak - 1]:
            peak += 1
        value, split = accepted * child[peak] + later[n - peak], peak
        if value <= best[n - 1]:
            value, split = best[n - 1], 0
        low, high = peak - 1, peak + 1
        while low >= 1 and accepted * child_bound[low] + later_bound[n - low] > value:
            candidate = accepted * child[low] + later[n - low]
            if candidate >= value:
                value, split = candidate, low
            low -= 1
        while high <= n and accepted * child_bound[high] + later_bound[n - high] > value:
            candidate = accepted * child[high] + later[n - high]
            if candidate > value:
                value, split = candidate, high
            high += 1
        if value > best[n - 1]:
            while low >= 1 and accepted * child_bound[low] + later_bound[n - low] >= value * NEARLY:
                if accepted * child[low] + later[n - low] >= value:  # as good, with a smaller subtree
                    split = low
                low -= 1
            splits[n] = split
        compared += high - low - 1
        best[n] = value
    return best, splits, compared


@njit(cache=True)
def forests(row: Float64, below: Float64) -> tuple[Float64, Int32, int]:
    """Return W, the values of the best forests below one node, their splits, and the number of splits compared.

    Args:
        row: float64 (B,), acceptance of each rank.
        below: float64 (R, N + 1), best values of subtrees whose root has rank 0, 1, … R - 1 and beyond.

    Returns:
        float64 (B + 1, N): entry [k, n] is the largest value of at most n nodes in the subtrees of children k, k + 1, …
        int32 (B + 1, N): nodes of the subtree of child k, from `best_splits`.
        Number of splits compared.
    """
    best = np.zeros((len(row) + 1, below.shape[1] - 1))
    splits = np.zeros(best.shape, np.int32)
    bounds = [envelope(values, 1) for values in below]
    compared = 0
    for k in range(len(row) - 1, -1, -1):
        if row[k] == 0.0 and best[k + 1, -1] == 0.0:
            continue  # neither this child nor any later one is ever accepted
        r = min(k, len(below) - 1)
        values, sizes, count = best_splits(row[k], below[r], bounds[r], best[k + 1], envelope(best[k + 1], 0))
        for n in range(len(values)):  # a loop compiles faster than an assignment of the whole
            best[k, n], splits[k, n] = values[n], sizes[n]
        compared += count
    return best, splits, compared


@njit(cache=True)
def child_sizes(row: Float64, below: Float64, nodes: Int64) -> Int64:
    """Return int64 (len(nodes), B): nodes in the subtree of each child, 0 for none.

    Args:
        row: as for `forests`.
        below: as for `forests`, N more than any of `nodes`.
        nodes: int64, nodes below each parent.
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
    """Return int32 (N + 1, L + 1): internal nodes per level of the best trees of every size.

    Args:
        row: as for `forests`.
        below: as for `forests`.
        widths: int32 (R, N + 1, L), internal nodes per level of the subtrees below.
    """
    _, splits, _ = forests(row, below)
    ranks, columns, levels = widths.shape
    forest = np.zeros((columns - 1, levels), np.int32)  # of the children from k on
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
    result = np.zeros((columns, levels + 1), np.int32)
    for n in range(2, columns):
        result[n, 0] = max(result[n - 1, 0], min(splits[0, n - 1], 1))
        for level in range(levels):
            result[n, level + 1] = forest[n - 1, level]
    return result
