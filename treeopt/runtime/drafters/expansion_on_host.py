"""How trees grow out of a draft model's probabilities, as plain loops over the host's memory, in several texts at once.

Of k children after every node that was fed, the node fed at place p has those numbered 1 + p k + rank; the root is 0.
Of equal nodes the one with the smaller number is better, so that no child, which is never more probable than its
parent, is taken without it.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from treeopt.arrays import Float32, Int64
from treeopt.compiling import watch
from treeopt.runtime.models.nodes import NOT_FED

watch()

NUMBER, ABOVE, TOKEN = range(3)
FED, LAST, BEST, FINITE = range(4)
PARENT, DRAFTED, PLACE = range(3)


class Nodes(NamedTuple):
    """All nodes of a step in several texts."""

    surprisals: Float32
    """float32 (texts, nodes): minus the sum of log-probabilities along the path to each."""
    tokens: Int64
    """int64 (texts, nodes)."""
    places: Int64
    """int64 (texts, nodes): how many were fed before each that was fed, NOT_FED of the others."""
    fed: Int64
    """int64 (texts, 3, places): of each that was fed its number, the place of its parent, -1 for the root, its token."""
    best: Int64
    """int64 (texts, most): numbers of the best below the root, the best first."""
    counts: Int64
    """int64 (texts, 4): fed, fed last, among the best, and 1 where all distributions are finite."""


def nodes_of(texts: int, numbers: int, fed: int, most: int) -> Nodes:
    """Return room for so many nodes of each text, of which so many are fed, and so many are the best."""
    return Nodes(
        np.empty((texts, numbers), np.float32),
        *(np.empty((texts, numbers), np.int64) for _ in range(2)),
        *(np.empty(shape, np.int64) for shape in ((texts, 3, fed), (texts, most), (texts, 4))),
    )


@njit(cache=True)
def begin(nodes: Nodes, roots: Int64) -> None:
    """Feed the root of every text, given its token."""
    for text in range(len(roots)):
        nodes.surprisals[text, 0] = 0.0
        nodes.tokens[text, 0] = roots[text]
        nodes.counts[text, FED] = nodes.counts[text, BEST] = 0
        nodes.counts[text, FINITE] = 1
        _feed(nodes, text, np.zeros(1, np.int64), 1)


@njit(cache=True)
def add(nodes: Nodes, log_probs: Float32, tokens: Int64, least: float) -> None:
    """Add the children of the nodes fed last, and keep the best of all.

    Args:
        nodes: see above; a text in which a distribution is not finite has none among the best.
        log_probs: float32 (m, k), of the likeliest tokens after each node fed last, text after text, falling.
        tokens: int64 (m, k), these.
        least: log-probability of a path below which it is not among the best.
    """
    row, (_, k) = 0, tokens.shape
    for text in range(len(nodes.counts)):
        surprisals, best, counts = nodes.surprisals[text], nodes.best[text], nodes.counts[text]
        for place in range(counts[FED] - counts[LAST], counts[FED]):
            if not np.isfinite(log_probs[row, 0]):  # in a distribution that is not finite, everything is NaN
                counts[FINITE] = 0
            above = surprisals[nodes.fed[text, NUMBER, place]]
            for rank in range(k):
                number = 1 + place * k + rank
                surprisals[number] = above - log_probs[row, rank]
                nodes.tokens[text, number] = tokens[row, rank]
                nodes.places[text, number] = NOT_FED
                if surprisals[number] <= -least:
                    counts[BEST] = _insert(best, counts[BEST], surprisals, number)
            row += 1
        if not counts[FINITE]:
            counts[BEST] = 0


@njit(cache=True)
def feed_beams(nodes: Nodes, k: int) -> None:
    """Feed the k best children of the nodes fed last, in falling order."""
    beams = np.empty(k, np.int64)
    for text in range(len(nodes.counts)):
        counts, count = nodes.counts[text], 0
        for number in range(1 + (counts[FED] - counts[LAST]) * k, 1 + counts[FED] * k):
            count = _insert(beams, count, nodes.surprisals[text], number)
        _feed(nodes, text, beams[: count * counts[FINITE]], k)


@njit(cache=True)
def feed_best(nodes: Nodes, k: int, most: int) -> None:
    """Feed those of the best that were not fed and could bring better ones, in falling order, at most so many."""
    for text in range(len(nodes.counts)):
        best, surprisals = nodes.best[text], nodes.surprisals[text]
        kept = best[: nodes.counts[text, BEST]]
        worst = surprisals[best[-1]] if len(kept) == len(best) else np.inf
        useful = kept[surprisals[kept] < worst]
        _feed(nodes, text, useful[nodes.places[text][useful] == NOT_FED][:most], k)


@njit(cache=True)
def level_order(nodes: Nodes, k: int, trees: Int64) -> None:
    """Write the tree of the root and the best of every text, siblings with rising numbers.

    Args:
        nodes: see above.
        k: children of each that was fed.
        trees: int64 (texts, 3, most + 1): the parent of each node in level order, its token, and its place where it was
            fed, NOT_FED elsewhere.
    """
    order = np.zeros(trees.shape[2], np.int64)
    for text in range(len(trees)):
        places, tree = nodes.places[text], trees[text]
        kept = np.zeros(1 + nodes.counts[text, FED] * k, np.bool_)
        kept[nodes.best[text, : nodes.counts[text, BEST]]] = True
        tree[PARENT, 0], node, count = -1, 0, 1
        while node < count:
            number, place = order[node], places[order[node]]
            tree[DRAFTED, node], tree[PLACE, node] = nodes.tokens[text, number], place
            if place != NOT_FED:
                for child in range(1 + place * k, 1 + place * k + k):
                    if kept[child]:
                        order[count], tree[PARENT, count] = child, node
                        count += 1
            node += 1


@njit(cache=True)
def _feed(nodes: Nodes, text: int, numbers: Int64, k: int) -> None:
    """Feed nodes of a text."""
    fed, counts = nodes.fed[text], nodes.counts[text]
    for place, number in enumerate(numbers, counts[FED]):
        nodes.places[text, number] = place
        fed[NUMBER, place], fed[ABOVE, place] = number, (number - 1) // k
        fed[TOKEN, place] = nodes.tokens[text, number]
    counts[FED] += len(numbers)
    counts[LAST] = len(numbers)


@njit(cache=True)
def _insert(best: Int64, count: int, surprisals: Float32, number: int) -> int:
    """Put a node among the best, whose numbers are smaller, where it belongs there, and return how many there are."""
    place = count
    if place == len(best):
        place -= 1
        if not surprisals[number] < surprisals[best[place]]:
            return count
    while place > 0 and surprisals[best[place - 1]] > surprisals[number]:
        best[place] = best[place - 1]
        place -= 1
    best[place] = number
    return min(count + 1, len(best))
