"""Beam search, and how its beams become a tree: equal beginnings share their nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable, Sequence
from math import isnan
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
    state: Tensor,
    score: Callable[[Tensor], Tensor],
    advance: Callable[[Tensor, Tensor], Tensor],
    *,
    width: int,
    length: int,
) -> list[Beam]:
    """Return the `width` beams of largest probability and `length` tokens, the best first; fewer where there are fewer.

    At every length the `width` best are kept; of equal ones those that go on from the better beam, then those with the
    smaller token.  Where the log-probabilities after one of them are NaN, there are no beams at all.

    Args:
        state: (1, S), before the first token.
        score: from states (m, S) to the log-probabilities (m, V) of the next token.
        advance: from states (m, S) and tokens, int64 (m,), to the states after them.
        width: beams, at least 1.
        length: tokens of each, at least 1.
    """
    beams: list[Beam] = [()]
    scores = score(state)
    for left in range(length - 1, -1, -1):
        best = largest(scores.flatten(), width)
        steps = [divmod(index, scores.shape[1]) for index, _ in best]
        beams = [(*beams[row], token) for row, token in steps]
        if not left or not beams:
            break
        rows, tokens = torch.tensor(steps).to(state.device, non_blocking=True).unbind(1)
        totals = torch.tensor([total for _, total in best], dtype=scores.dtype).to(state.device, non_blocking=True)
        state = advance(state[rows], tokens)
        scores = totals[:, None] + score(state)
    return beams


def largest(scores: Tensor, count: int) -> list[tuple[int, float]]:
    """Return the indices of the largest of scores (n,) and these, in falling order, of equal ones the first.

    None where one is NaN.  A device is waited for once, but where equals of the last go on.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    [(1, 3.0), (3, 3.0), (2, 2.0)]
    """
    top = scores.topk(min(count + 1, len(scores)))
    indices, values = on_host(top.indices, top.values)
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
