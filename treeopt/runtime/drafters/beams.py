"""Beam search, and how its beams become a tree: equal beginnings share their nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.runtime.models.finite import on_host
from treeopt.trees import TokenTree

Beam = tuple[int, ...]
"""Tokens in a row."""


class Merged(NamedTuple):
    """Beams as one tree."""

    tree: TokenTree
    tokens: list[int]
    """Those below the root."""


def beam_search(
    states: Tensor,
    score: Callable[[Tensor], Tensor],
    advance: Callable[[Tensor, Tensor], Tensor],
    *,
    width: int,
    length: int,
) -> list[list[Beam]]:
    """Return of each text the `width` beams of largest probability and `length` tokens, the best first.

    At every length the `width` best are kept, fewer where there are fewer; of equal ones those that go on from the
    better beam, then those with the smaller token.  Where the log-probabilities after one of them are NaN, a text has no
    beams at all.

    Args:
        states: (texts, S), before the first token of each.
        score: from states (m, S) to the log-probabilities (m, V) of the next token, as many rows of each text.
        advance: from states (m, S) and tokens, int64 (m,), to the states after them.
        width: beams of a text, at least 1.
        length: tokens of each, at least 1.
    """
    beams: list[list[Beam]] = [[()] for _ in states]
    scores = score(states)
    for left in range(length - 1, -1, -1):
        kept, vocabulary = len(scores) // len(beams), scores.shape[1]
        best = largest(scores.view(len(beams), -1), width)
        steps = [[divmod(index, vocabulary) for index, _ in each] for each in best]
        beams = [[(*before[row], token) for row, token in each] for before, each in zip(beams, steps, strict=True)]
        if not left or not any(best):
            break
        most = max(map(len, best))
        going_on = [
            (text * kept + index // vocabulary, index % vocabulary, total)
            for text, each in enumerate(best)
            for index, total in each or [(0, nan)] * most  # a text without beams keeps its rows, and has none again
        ]
        *steps_on, totals = zip(*going_on, strict=True)
        rows, tokens = torch.tensor(steps_on).to(states.device, non_blocking=True)
        states = advance(states[rows], tokens)
        so_far = torch.tensor(totals, dtype=scores.dtype).to(states.device, non_blocking=True)
        scores = so_far[:, None] + score(states)
    return beams


def largest(scores: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return of each row of scores (rows, n) the indices of the largest and these, in falling order, of equal ones the first.

    None where one is NaN.  A device is waited for once, but where equals of the last go on.

    >>> largest(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3)
    [[(1, 3.0), (3, 3.0), (2, 2.0)]]
    """
    top = scores.topk(min(count + 1, scores.shape[1]))
    indices, values = on_host(top.indices.flatten(), top.values.flatten())
    size = top.indices.shape[1]
    return [
        _in_order(row, indices[start : start + size], values[start : start + size], count)
        for row, start in zip(scores, range(0, len(indices), size), strict=True)
    ]


def _in_order(scores: Tensor, indices: Sequence[int], values: Sequence[float], count: int) -> list[tuple[int, float]]:
    """Return the same of one row, given at least one more than are asked for, where there are more."""
    if isnan(values[0]):  # counts as the largest
        return []
    if values[count:] == values[count - 1 : count]:  # any of the equals may be among them
        every = (scores >= values[-1]).nonzero()[:, 0]
        indices, values = on_host(every, scores[every])
    return sorted(zip(indices, values, strict=True), key=lambda found: (-found[1], found[0]))[:count]


def merged(beams: Sequence[Beam]) -> Merged:
    """Return the tree of all beginnings of beams of one length, each once; siblings as they come first, best beam first.

    >>> merged([(5, 7), (5, 8), (6, 7)])
    Merged(tree=TokenTree(nodes=6, max_depth=2, widths=[1, 2, 3]), tokens=[5, 6, 7, 8, 7])
    """
    parents, tokens = [-1], []
    ends = [0] * len(beams)
    for level in zip(*beams, strict=True):
        steps = list(zip(ends, level, strict=True))
        new = sorted(dict.fromkeys(steps), key=itemgetter(0))
        node_after = {step: node for node, step in enumerate(new, start=len(parents))}
        parents += [parent for parent, _ in new]
        tokens += [token for _, token in new]
        ends = [node_after[step] for step in steps]
    return Merged(recurring_tree(tuple(parents)), tokens)
