"""Beam search, and the tree of its beams, in which common prefixes share nodes (Zhang et al., 2024, section 3)."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from operator import itemgetter

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import intern_tree
from treeopt.runtime.models.finite import copy_to_host
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

    The `width` best prefixes are kept at every length; ties are broken by the rank of the prefix before, then by token.
    A sequence has no beams if log-probabilities after one of its prefixes are NaN.

    Args:
        states: (sequences, S), before the first token of each.
        score: from states (m, S) to the log-probabilities (m, V) of the next token, the same number of rows for each
            sequence.
        advance: from states (m, S) and tokens, int64 (m,), to the states after them.
        width: beams of each sequence, at least 1.
        length: tokens of each beam, at least 1.
    """
    beams: list[list[Beam]] = [[()] for _ in states]
    scores = score(states)
    for remaining in range(length - 1, -1, -1):
        prefixes, vocabulary = len(scores) // len(beams), scores.shape[1]
        best = top_per_row(scores.view(len(beams), -1), width)
        beams = [
            [(*before[index // vocabulary], index % vocabulary) for index, _ in candidates]
            for before, candidates in zip(beams, best, strict=True)
        ]
        if not remaining or not any(best):
            break
        widest = max(map(len, best))
        extensions = [
            (sequence * prefixes + index // vocabulary, index % vocabulary, total)
            for sequence, candidates in enumerate(best)
            for index, total in candidates or [(0, nan)] * widest  # padding for a sequence without beams
        ]
        *indices, totals = zip(*extensions, strict=True)
        rows, tokens = torch.tensor(indices).to(states.device, non_blocking=True)
        states = advance(states[rows], tokens)
        cumulative = torch.tensor(totals, dtype=scores.dtype).to(states.device, non_blocking=True)
        scores = cumulative[:, None] + score(states)
    return beams


def top_per_row(scores: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return the indices and values of the largest scores of each row (rows, n), in falling order, ties by index.

    A row with a NaN gives an empty list.  Takes one host sync, and another for each row with ties beyond `count`.

    >>> top_per_row(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3)
    [[(1, 3.0), (3, 3.0), (2, 2.0)]]
    """
    top = scores.topk(min(count + 1, scores.shape[1]))
    indices, values = copy_to_host(top.indices.flatten(), top.values.flatten())
    size = top.indices.shape[1]
    return [
        _sort_top(row, indices[start : start + size], values[start : start + size], count)
        for row, start in zip(scores, range(0, len(indices), size), strict=True)
    ]


def _sort_top(scores: Tensor, indices: Sequence[int], values: Sequence[float], count: int) -> list[tuple[int, float]]:
    """Return the top of one row, given its `count` + 1 largest values."""
    if isnan(values[0]):  # topk ranks NaN first
        return []
    if values[count:] == values[count - 1 : count]:  # a tie: topk may have dropped the smaller index
        tied = (scores >= values[-1]).nonzero()[:, 0]
        indices, values = copy_to_host(tied, scores[tied])
    return sorted(zip(indices, values, strict=True), key=lambda item: (-item[1], item[0]))[:count]


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
