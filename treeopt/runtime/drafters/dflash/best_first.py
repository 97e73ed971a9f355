"""Numba kernels that grow the most probable paths of a block, best first (DDTree, arXiv 2604.12989, section 4).

All nodes of a depth share the ranking of their slot.  So the next best path is the next sibling or the first child of a
path that was taken before, and a heap of these finds the paths in falling order: the tree of n nodes is a prefix of every
larger one.  Probabilities are products of the slots' marginals.
"""

from heapq import heappop, heappush

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Int64
from treeopt.compiling import watch_compilation

watch_compilation()

NEVER = 2**31 - 1
"""Tokens of a tree that contains a node which no tree contains; exact as a float."""


@njit(cache=True)
def grow_trees(log_probs: Float64, sizes: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the trees of several sequences in level order, siblings by rising rank.

    Args:
        log_probs: float64 (sequences, levels, k), of the top tokens of each slot, in falling order.
        sizes: int64 (sequences,), tokens of each tree, root included.

    Returns parents, int64 (sequences, max(sizes)); the index (depth - 1) k + rank of each node's token, 0 for the root, of
    the same shape; and the nodes of each tree, fewer than its size if there are no more paths.
    """
    sequences, _, k = log_probs.shape
    most = max(1, sizes.max()) if sequences else 1
    parents, tokens = np.full((sequences, most), -1, np.int64), np.zeros((sequences, most), np.int64)
    counts = np.ones(sequences, np.int64)
    order, depths = np.zeros(most, np.int64), np.zeros(most, np.int64)
    for sequence in range(sequences):
        grown_parents, ranks = _grow(log_probs[sequence], sizes[sequence])
        count = len(ranks)
        first, last, following = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        for node in range(1, count):  # siblings are grown by rising rank
            parent = grown_parents[node]
            if first[parent]:
                following[last[parent]] = node
            else:
                first[parent] = node
            last[parent] = node
        placed = 1
        for place in range(count):
            child = first[order[place]]
            while child:
                order[placed], depths[placed], parents[sequence, placed] = child, depths[place] + 1, place
                tokens[sequence, placed] = depths[place] * k + ranks[child]
                child, placed = following[child], placed + 1
        counts[sequence] = count
    return parents, tokens, counts


@njit(cache=True)
def count_tokens_to_reach(log_probs: Float64, ranks: Int64, size: int) -> Int64:
    """Return the tokens of the smallest tree that contains each node of one path below each root, root included.

    Args:
        log_probs: float64 (roots, levels, k), of the top tokens of each slot, in falling order.
        ranks: int64 (roots, levels), the rank of the path's token in each slot, negative for none of the top tokens.
        size: tokens of the largest tree.

    Returns int64 (roots, levels): for each depth from 1 on, `NEVER` if the largest tree does not contain the node.
    """
    needed = np.full(ranks.shape, NEVER, np.int64)
    for root in range(len(ranks)):
        parents, node_ranks = _grow(log_probs[root], size)
        last, depth = 0, 0
        for node in range(1, len(parents)):
            if depth < ranks.shape[1] and parents[node] == last and node_ranks[node] == ranks[root, depth]:
                needed[root, depth] = node + 1
                last, depth = node, depth + 1
    return needed


@njit(cache=True)
def _grow(log_probs: Float64, size: int) -> tuple[Int64, Int64]:
    """Return the parents and ranks of a tree of `size` nodes, the root's -1 and 0, then the paths as they are taken.

    Ties go to the path that became a candidate first.
    """
    levels, k = log_probs.shape
    parents, ranks, depths = np.full(size, -1, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    surprisals = np.zeros(size)
    candidates = [(-log_probs[0, 0], 0, 0, 0)]  # surprisal, order, parent and rank; the order is unique
    created, count = 1, 1
    while count < size and len(candidates):
        surprisal, _, parent, rank = heappop(candidates)
        depth = depths[parent] + 1
        parents[count], ranks[count], depths[count], surprisals[count] = parent, rank, depth, surprisal
        if rank + 1 < k:
            heappush(candidates, (surprisals[parent] - log_probs[depth - 1, rank + 1], created, parent, rank + 1))
        if depth < levels:
            heappush(candidates, (surprisal - log_probs[depth, 0], created + 1, count, 0))
        count, created = count + 1, created + 2
    return parents[:count], ranks[:count]
