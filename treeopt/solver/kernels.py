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
def child_sizes(acceptance: FloatArray, subtree: FloatArray, nodes: int) -> npt.NDArray[np.int64]:
    """Return how the best forest of at most `nodes` nodes shares them out: (children,) sizes in rank order.

    Ties are broken toward fewer children, then toward smaller subtrees at lower ranks, so that equal input gives
    the same tree on every machine and no node is spent for nothing.
    """
    best = forests(acceptance, subtree[: nodes + 2])
    sizes = np.zeros(len(acceptance), np.int64)
    left, k = nodes, 0
    while k < len(acceptance) and best[k, left] > 0.0:
        for m in range(1, left + 1):
            if acceptance[k] * subtree[m] + best[k + 1, left - m] == best[k, left]:
                sizes[k] = m
                left -= m
                break
        k += 1
    return sizes[:k]
