"""Numba kernels that grow trees from a draft model's probabilities, for several sequences at a time.

Nodes have ids: the root has 0, and the k children of the node with feed index f have 1 + f k + rank.  Ties go to the
smaller id, so that a child, which is never more probable than its parent, is not selected without it.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from treeopt.arrays import Float32, Int64
from treeopt.compiling import watch_compilation
from treeopt.runtime.models.nodes import NOT_FED

watch_compilation()

ID, PARENT_INDEX, TOKEN = range(3)
"""Rows of `NodeArrays.fed`."""
FED, LAST_FED, BEST, FINITE = range(4)
"""Columns of `NodeArrays.counts`."""
PARENT, DRAFTED, INDEX = range(3)
"""Rows of the trees of `write_trees`."""


class NodeArrays(NamedTuple):
    """All candidate nodes of a step, in several sequences."""

    surprisals: Float32
    """float32 (sequences, ids): minus the cumulative log-probability of each node's path."""
    tokens: Int64
    """int64 (sequences, ids)."""
    feed_indices: Int64
    """int64 (sequences, ids): NOT_FED for nodes that were not fed."""
    fed: Int64
    """int64 (sequences, 3, feed indices): id of each fed node, its parent's feed index (-1 for the root), its token."""
    best: Int64
    """int64 (sequences, budget): ids of the best nodes below the root, in falling order."""
    counts: Int64
    """int64 (sequences, 4): nodes fed, nodes fed last, nodes in `best`, and 1 if all distributions are finite."""


def allocate_nodes(sequences: int, ids: int, fed: int, budget: int) -> NodeArrays:
    return NodeArrays(
        np.empty((sequences, ids), np.float32),
        *(np.empty((sequences, ids), np.int64) for _ in range(2)),
        *(np.empty(shape, np.int64) for shape in ((sequences, 3, fed), (sequences, budget), (sequences, 4))),
    )


@njit(cache=True)
def begin(nodes: NodeArrays, roots: Int64) -> None:
    """Feed the root of every sequence, given its token."""
    for sequence in range(len(roots)):
        nodes.surprisals[sequence, 0] = 0.0
        nodes.tokens[sequence, 0] = roots[sequence]
        nodes.counts[sequence, FED] = nodes.counts[sequence, BEST] = 0
        nodes.counts[sequence, FINITE] = 1
        _feed(nodes, sequence, np.zeros(1, np.int64), 1)


@njit(cache=True)
def add_children(nodes: NodeArrays, log_probs: Float32, tokens: Int64, min_log_prob: float) -> None:
    """Add the children of the nodes fed last, and update the best nodes.

    Args:
        nodes: updated; a sequence with a distribution that is not finite has no best nodes.
        log_probs: float32 (m, k), of the top tokens after each node fed last, in falling order, sequences concatenated.
        tokens: int64 (m, k), the top tokens.
        min_log_prob: of a path; below, its node is not among the best.
    """
    row, (_, k) = 0, tokens.shape
    for sequence in range(len(nodes.counts)):
        surprisals, best, counts = nodes.surprisals[sequence], nodes.best[sequence], nodes.counts[sequence]
        for index in range(counts[FED] - counts[LAST_FED], counts[FED]):
            if not np.isfinite(log_probs[row, 0]):  # in a distribution that is not finite, everything is NaN
                counts[FINITE] = 0
            parent = surprisals[nodes.fed[sequence, ID, index]]
            for rank in range(k):
                child = 1 + index * k + rank
                surprisals[child] = parent - log_probs[row, rank]
                nodes.tokens[sequence, child] = tokens[row, rank]
                nodes.feed_indices[sequence, child] = NOT_FED
                if surprisals[child] <= -min_log_prob:
                    counts[BEST] = _insert(best, counts[BEST], surprisals, child)
            row += 1
        if not counts[FINITE]:
            counts[BEST] = 0


@njit(cache=True)
def feed_beams(nodes: NodeArrays, k: int) -> None:
    """Feed the k best children of the nodes fed last, in falling order."""
    beams = np.empty(k, np.int64)
    for sequence in range(len(nodes.counts)):
        counts, count = nodes.counts[sequence], 0
        for child in range(1 + (counts[FED] - counts[LAST_FED]) * k, 1 + counts[FED] * k):
            count = _insert(beams, count, nodes.surprisals[sequence], child)
        _feed(nodes, sequence, beams[: count * counts[FINITE]], k)


@njit(cache=True)
def feed_best(nodes: NodeArrays, k: int, limit: int) -> None:
    """Feed the first `limit` of the best nodes that were not fed and whose children could be among the best."""
    for sequence in range(len(nodes.counts)):
        best, surprisals = nodes.best[sequence], nodes.surprisals[sequence]
        selected = best[: nodes.counts[sequence, BEST]]
        worst = surprisals[best[-1]] if len(selected) == len(best) else np.inf
        useful = selected[surprisals[selected] < worst]
        _feed(nodes, sequence, useful[nodes.feed_indices[sequence][useful] == NOT_FED][:limit], k)


@njit(cache=True)
def write_trees(nodes: NodeArrays, k: int, trees: Int64) -> None:
    """Write the tree of the root and the best nodes of every sequence in level order, siblings by rising id.

    `trees`, int64 (sequences, 3, budget + 1), receives each node's parent, token and feed index.
    """
    order = np.zeros(trees.shape[2], np.int64)
    for sequence in range(len(trees)):
        feed_indices, tree = nodes.feed_indices[sequence], trees[sequence]
        selected = np.zeros(1 + nodes.counts[sequence, FED] * k, np.bool_)
        selected[nodes.best[sequence, : nodes.counts[sequence, BEST]]] = True
        tree[PARENT, 0], node, count = -1, 0, 1
        while node < count:
            index = feed_indices[order[node]]
            tree[DRAFTED, node], tree[INDEX, node] = nodes.tokens[sequence, order[node]], index
            if index != NOT_FED:
                for child in range(1 + index * k, 1 + index * k + k):
                    if selected[child]:
                        order[count], tree[PARENT, count] = child, node
                        count += 1
            node += 1


@njit(cache=True)
def _feed(nodes: NodeArrays, sequence: int, ids: Int64, k: int) -> None:
    fed, counts = nodes.fed[sequence], nodes.counts[sequence]
    for index, node in enumerate(ids, counts[FED]):
        nodes.feed_indices[sequence, node] = index
        fed[ID, index], fed[PARENT_INDEX, index] = node, (node - 1) // k
        fed[TOKEN, index] = nodes.tokens[sequence, node]
    counts[FED] += len(ids)
    counts[LAST_FED] = len(ids)


@njit(cache=True)
def _insert(best: Int64, count: int, surprisals: Float32, node: int) -> int:
    """Insert a node into a sorted list of nodes with smaller ids, and return the new length."""
    position = count
    if position == len(best):
        position -= 1
        if not surprisals[node] < surprisals[best[position]]:
            return count
    while position > 0 and surprisals[best[position - 1]] > surprisals[node]:
        best[position] = best[position - 1]
        position -= 1
    best[position] = node
    return min(count + 1, len(best))
