"""Beam search, and the tree of its beams, in which common prefixes share nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import intern_tree
from treeopt.trees import TokenTree

Beam = tuple[int, ...]


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
    sequences = len(states)
    first_rows = torch.arange(sequences, device=states.device)[:, None]
    log_probs = score(states)
    children = min(width, log_probs.shape[1])
    totals, likeliest = log_probs.topk(children)  # topk ranks NaN first, and sums of NaN are NaN
    tokens = likeliest.flatten()
    levels, before = [tokens], states.repeat_interleave(children, 0)
    for _ in range(length - 1):
        states = advance(before, tokens)
        scores, likeliest = score(states).topk(children)
        scores = (scores + totals.view(-1, 1)).view(sequences, -1)
        totals, best = scores.topk(min(width, scores.shape[1]))
        best = (best + scores.shape[1] * first_rows).flatten()  # among the children of all sequences
        prefixes, tokens = best // children, likeliest.flatten().index_select(0, best)
        levels += [prefixes, tokens]
        before = states.index_select(0, prefixes)
    numbers = iter(torch.cat([totals[:, 0].isnan().long(), *levels]).tolist())
    not_finite = list(islice(numbers, sequences))
    beams = _join_levels(numbers, [len(level) for level in levels[::2]])
    each = len(beams) // sequences
    return [[] if missing else beams[number * each :][:each] for number, missing in enumerate(not_finite)]


def _join_levels(remaining: Iterator[int], widths: Sequence[int]) -> list[Beam]:
    """Return the beams, given the tokens of the first level, then of each level the indices of the prefixes and the tokens."""
    beams: list[Beam] = [(token,) for token in islice(remaining, widths[0])]
    for width in widths[1:]:
        prefixes = [beams[index] for index in islice(remaining, width)]
        beams = [(*prefix, token) for prefix, token in zip(prefixes, islice(remaining, width), strict=True)]
    return beams


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
