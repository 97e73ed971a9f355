"""Beam search, and how its beams become a tree: equal beginnings share their nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.trees import TokenTree


class Merged(NamedTuple):
    """Beams as one tree."""

    tree: TokenTree
    tokens: Int64
    """int64 (n - 1,): the tokens below the root."""


def beam_search(
    state: Tensor,
    score: Callable[[Tensor], Tensor],
    advance: Callable[[Tensor, Tensor], Tensor],
    *,
    width: int,
    length: int,
) -> Tensor:
    """Return the beams of largest probability, the best first, int64 (width, length); fewer where there are fewer.

    At every length the `width` best are kept; of equal ones those that go on from the better beam, then those with the
    smaller token.  Where the log-probabilities after one of them are NaN, there are no beams at all.

    Args:
        state: (1, S), before the first token.
        score: from states (m, S) to the log-probabilities (m, V) of the next token.
        advance: from states (m, S) and tokens, int64 (m,), to the states after them.
        width: beams, at least 1.
        length: tokens of each, at least 1.
    """
    beams = torch.empty((1, 0), dtype=torch.int64, device=state.device)
    total = torch.zeros((1, 1), device=state.device)
    for left in range(length - 1, -1, -1):
        scores = total + score(state)
        best = largest(scores.flatten(), width)
        if len(best) == 0:
            return beams[:0]
        rows, tokens = best // scores.shape[1], best % scores.shape[1]
        beams = torch.cat([beams[rows], tokens[:, None]], 1)
        if left:
            total = scores.flatten()[best][:, None]
            state = advance(state[rows], tokens)
    return beams


def largest(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the largest of scores (n,) in falling order, of equal ones the first.

    None where as many scores are NaN as are wanted, or all.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3).tolist()
    [1, 3, 2]
    """
    least = scores.topk(min(count, len(scores))).values[-1]  # NaN counts as the largest, and nothing is as large
    candidates = (scores >= least).nonzero()[:, 0]
    return candidates[scores[candidates].argsort(descending=True, stable=True)[:count]]


def merged(beams: Int64) -> Merged:
    """Return the tree of all beginnings of beams, int64 (W, L), each once; siblings as they come first, best beam first.

    >>> merged(np.array([[5, 7], [5, 8], [6, 7]]))
    Merged(tree=TokenTree(nodes=6, max_depth=2, widths=[1, 2, 3]), tokens=array([5, 6, 7, 8, 7]))
    """
    parents, tokens = [-1], []
    ends = [0] * len(beams)
    for level in beams.T.tolist():
        steps = list(zip(ends, level, strict=True))
        new = sorted(dict.fromkeys(steps), key=itemgetter(0))
        node_after = {step: node for node, step in enumerate(new, start=len(parents))}
        parents += [parent for parent, _ in new]
        tokens += [token for _, token in new]
        ends = [node_after[step] for step in steps]
    return Merged(recurring_tree(tuple(parents)), np.array(tokens, np.int64))
