"""Beam search, and the tree of its beams, in which common prefixes share nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import intern_tree
from treeopt.trees import TokenTree

Beam = tuple[int, ...]
NOT_FINITE = -1
"""In place of the tokens of a sequence after a distribution that is not finite."""


def beam_search(
    states: Tensor,
    score: Callable[[Tensor], Tensor],
    advance: Callable[[Tensor, Tensor], Tensor],
    *,
    width: int,
    length: int,
) -> list[list[Beam]]:
    """Return the `width` most probable beams of `length` tokens of each sequence, the best first.

    The `width` best prefixes are kept at every length.  A sequence has no beams if log-probabilities after one of its
    prefixes are NaN.  Takes one host sync.

    Args:
        states: (sequences, S), before the first token of each.
        score: from states (m, S) to the log-probabilities (m, V) of the next token, the same number of rows for each
            sequence.
        advance: from states (m, S) and tokens, int64 (m,), to the states after them.
        width: beams of each sequence, at least 1.
        length: tokens of each beam, at least 1.
    """
    sequences = torch.arange(len(states), device=states.device)[:, None]
    beams = sequences.new_empty((len(states), 1, 0))
    totals = torch.zeros((len(states), 1), device=states.device)
    for remaining in range(length - 1, -1, -1):
        log_probs = score(states)
        children = min(width, log_probs.shape[1])
        scores, tokens = log_probs.topk(children)  # topk ranks NaN first, and sums of NaN are NaN
        scores = scores + totals.flatten()[:, None]
        scores, tokens = scores.view(len(sequences), -1), tokens.view(len(sequences), -1)
        totals, best = scores.topk(min(width, scores.shape[1]))
        prefixes, tokens = best // children, tokens.gather(1, best)
        beams = torch.cat([beams[sequences, prefixes], tokens[:, :, None]], 2)
        if remaining:
            before = states.unflatten(0, (len(sequences), -1))[sequences, prefixes]
            states = advance(before.flatten(0, 1), tokens.flatten())
    found = beams.masked_fill(totals[:, :1, None].isnan(), NOT_FINITE).tolist()
    return [[tuple(beam) for beam in row] if row[0][0] != NOT_FINITE else [] for row in found]


def merge_beams(beams: Sequence[Beam]) -> tuple[TokenTree, list[int]]:
    """Return the prefix tree of beams of equal length, and the tokens below its root; siblings in order of their first beam.

    >>> merge_beams([(5, 7), (5, 8), (6, 7)])
    (TokenTree(nodes=6, max_depth=2, widths=[1, 2, 3]), [5, 6, 7, 8, 7])
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
    return intern_tree(tuple(parents)), tokens
