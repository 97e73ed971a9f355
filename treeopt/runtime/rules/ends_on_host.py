"""Where the accepted paths of tested trees end, as plain loops over the host's memory, in several texts at once.

They say of every text what `selection` says of one.  What they take is

    walk        int64 (n, 6), of each node of the tree that all texts have: its parent, -1 for the root; its first child;
                how many it has; in row i, the i-th of all nodes, each after all that is below it; depth; its row in
                `residual`, -1 for a leaf
    acceptance  float64 (texts, n): how probable each node is to be accepted when its turn comes
    noise       float64 (texts, n + 1): uniform on [0, 1), a number per node, and one for the token after the path
    ends        int64 (texts, 3): the last node of each path is written to the first column
"""

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Floats, Int64
from treeopt.compiling import watch
from treeopt.runtime.rules.on_host import quantile, token_at

watch()

PARENT, FIRST_CHILD, CHILDREN, ORDER, DEPTH, ROW = range(6)


@njit(cache=True)
def top_down(walk: Int64, acceptance: Float64, noise: Float64, ends: Int64) -> None:
    """End paths as `selection.TopDown` does."""
    for text in range(len(ends)):
        last, node = -1, 0
        while node >= 0:
            last, node = node, -1
            first = walk[last, FIRST_CHILD]
            for child in range(first, first + walk[last, CHILDREN]):
                if noise[text, child] < acceptance[text, child]:
                    node = child
                    break
        ends[text, 0] = last


@njit(cache=True)
def leaves_first(walk: Int64, acceptance: Float64, noise: Float64, ends: Int64) -> None:
    """End paths as `selection.LeavesFirst` does."""
    for text in range(len(ends)):
        for node in walk[:, ORDER]:
            if noise[text, node] < acceptance[text, node]:
                ends[text, 0] = node
                break


@njit(cache=True)
def longest(walk: Int64, acceptance: Float64, noise: Float64, ends: Int64) -> None:  # noqa: ARG001
    """End paths as `selection.Longest` does."""
    for text in range(len(ends)):
        last = 0
        for node in range(1, len(walk)):
            further = walk[node, DEPTH] - walk[last, DEPTH]
            likelihood, best = acceptance[text, node], acceptance[text, last]
            if likelihood > 0 and (further > 0 or (further == 0 and likelihood > best)):
                last = node
        ends[text, 0] = last


@njit(cache=True)
def tokens_after(walk: Int64, target: Floats, residual: Float64, noise: Float64, by_level: bool, ends: Int64) -> None:
    """Write the token after each path, and whether what it hangs on is finite, to the other columns of `ends`.

    Args:
        walk: see above.
        target: float (texts, n, V), the target's distribution after each node.
        residual: float64 (texts, m, V), up to a factor that of the token after a path that ends at each parent.
        noise: see above.
        by_level: whether a path hangs on the distributions after all nodes, and not only after its own.
        ends: see above.
    """
    for text in range(len(ends)):
        node = ends[text, 0]
        row, whole = walk[node, ROW], target[text, node]
        if row < 0:
            ends[text, 1] = token_at(whole, noise[text, -1])
        else:
            ends[text, 1] = token_after(whole, residual[text, row], noise[text, -1])
        finite = True
        if by_level:
            node = len(walk) - 1
        while node >= 0:
            finite = finite and np.isfinite(target[text, node, 0])  # one number of a distribution tells of all
            node = node - 1 if by_level else walk[node, PARENT]
        ends[text, 2] = finite


@njit(cache=True)
def token_after(whole: Floats, left: Floats, share: float) -> int:
    """Return the token that a share of what is left of a distribution stands for, of the whole where nothing is.

    Nothing is left where draft and target are alike, and rounding rejected all the same.
    """
    token = quantile(left, share)
    return token if token < len(left) else token_at(whole, share)
