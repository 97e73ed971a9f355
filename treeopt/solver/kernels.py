"""The dynamic program as compiled kernels: arrays in, arrays out; `treeopt.solver.solution` checks what goes in.

Weights are relative to the subtree's own root, so a subtree's value does not depend on where it hangs.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]


@njit(cache=True)
def forests(acceptance: FloatArray, subtree: FloatArray) -> FloatArray:
    """Return the best forests below one node, for every number of nodes and every first rank.

    Args:
        acceptance: (B,) probability that the child of each rank is accepted.
        subtree: (N + 1,) best value of a child's subtree with at most n nodes, relative to the child; entry 0 is 0.

    Returns:
        (B + 1, N): entry [k, n] is the most that at most n nodes can yield in the subtrees of children k, k+1, …

    Recurrence: W[k, n] = max(0, max over 1 <= m <= n of acceptance[k] * subtree[m] + W[k+1, n-m]), W[B, n] = 0.
    A node's children are a prefix of the ranks, which is why W stops at the first rank it leaves out.
    """
    branching, nodes = len(acceptance), len(subtree) - 1
    best = np.zeros((branching + 1, nodes))
    for k in range(branching - 1, -1, -1):
        for m in range(1, nodes):
            value = acceptance[k] * subtree[m]
            for n in range(m, nodes):  # innermost over n: contiguous, so it is vectorised
                best[k, n] = max(best[k, n], value + best[k + 1, n - m])
    return best


@njit(cache=True)
def values(rows: FloatArray, position_invariant: bool, max_nodes: int) -> FloatArray:
    """Return the best value of every subtree: where it hangs, how deep it may go, how many nodes it may have.

    Args:
        rows: (D, B) acceptance at depth 1 … D.
        position_invariant: all rows are equal, so a subtree's value depends on the levels below it only.
        max_nodes: N.

    Returns:
        (D + 1, D + 1, N + 1): entry [d, h, n] is the most that a subtree whose root stands at depth d yields, with
        at most h levels below it and at most n nodes, relative to its root; d + h <= D, the rest is 0.

    Recurrence: V[d, h, n] = 1 + W[0, n-1], with W the forests over rows[d] and V[d+1, h-1] (Chen et al., 2024,
    Algorithm 1, carried to one row per depth and to at most n nodes).
    """
    depth = len(rows)
    best = np.zeros((depth + 1, depth + 1, max_nodes + 1))
    best[:, 0, 1:] = 1.0
    for h in range(1, depth + 1):
        for d in range(depth - h, -1, -1):
            if position_invariant and d < depth - h:
                best[d, h] = best[depth - h, h]
            else:
                best[d, h, 1:] = 1.0 + forests(rows[d], best[d + 1, h - 1])[0]
    return best


@njit(cache=True)
def share_out(
    acceptance: FloatArray, subtree: FloatArray, forest: FloatArray, nodes: int, sizes: npt.NDArray[np.int64]
) -> int:
    """Write how the best forest of at most `nodes` nodes shares them out; return the number of children.

    Args:
        acceptance: (B,).
        subtree: (N + 1,), best value of a child's subtree.
        forest: (B + 1, N), from `forests`.
        nodes: at most N - 1.
        sizes: (B,), receives the most nodes of each child's subtree, in rank order.

    Ties are broken toward fewer children, then toward smaller subtrees at lower ranks, so that equal input gives
    the same tree on every machine and no node is spent for nothing.
    """
    left, k = nodes, 0
    while k < len(acceptance) and forest[k, left] > 0.0:
        m = 1
        while acceptance[k] * subtree[m] + forest[k + 1, left - m] < forest[k, left]:
            m += 1
        sizes[k] = m
        left -= m
        k += 1
    return k


@njit(cache=True)
def shapes(
    rows: FloatArray, position_invariant: bool, best: FloatArray
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return what a step pays for: the size of the best tree of every budget and depth, and its levels' internal nodes.

    Args:
        rows: (D, B), as for `values`.
        position_invariant: as for `values`.
        best: what `values` returned.

    Returns:
        sizes (D + 1, N + 1): nodes of the tree of depth at most h and at most n nodes.
        widths (D + 1, N + 1, D): its nodes at each depth that have children.
    """
    depth, nodes = len(rows), best.shape[2]
    # [d]: trees that hang at depth d and are h - 1 (above) and h (here) levels deep
    above_sizes, above_widths = np.ones((depth + 1, nodes), np.int32), np.zeros((depth + 1, nodes, depth), np.int32)
    above_sizes[:, 0] = 0
    sizes, widths = np.zeros((depth + 1, nodes), np.int32), np.zeros((depth + 1, nodes, depth), np.int32)
    sizes[0] = above_sizes[0]
    shares = np.zeros(rows.shape[1], np.int64)
    for h in range(1, depth + 1):
        here_sizes, here_widths = above_sizes.copy(), np.zeros_like(above_widths)
        for d in range(depth - h, -1, -1):
            if position_invariant and d < depth - h:
                here_sizes[d], here_widths[d] = here_sizes[depth - h], here_widths[depth - h]
                continue
            forest = forests(rows[d], best[d + 1, h - 1])
            for n in range(1, nodes):
                children = share_out(rows[d], best[d + 1, h - 1], forest, n - 1, shares)
                here_sizes[d, n] = 1
                for k in range(children):
                    here_sizes[d, n] += above_sizes[d + 1, shares[k]]
                    here_widths[d, n, 1:] += above_widths[d + 1, shares[k], :-1]
                here_widths[d, n, 0] = min(children, 1)
        sizes[h], widths[h] = here_sizes[0], here_widths[0]
        above_sizes, above_widths = here_sizes, here_widths
    return sizes, widths


@njit(cache=True)
def child_sizes(acceptance: FloatArray, subtree: FloatArray, nodes: int) -> npt.NDArray[np.int64]:
    """Return the most nodes of each child's subtree in the best forest of at most `nodes` nodes, (children,)."""
    sizes = np.zeros(len(acceptance), np.int64)
    forest = forests(acceptance, subtree[: nodes + 2])
    return sizes[: share_out(acceptance, subtree, forest, nodes, sizes)]
