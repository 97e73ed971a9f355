"""Passes of a model over one sequence and over several."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.models.model import NO_STATES, Output, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree, chain, level_widths

LENGTHS = (9, 0, 4, 23, 5)
"""Committed tokens of sequences of unequal lengths."""
TREE = level_widths([2, 3])
UNEQUAL = (TREE, chain(0), chain(2), chain(0), level_widths([3]))
COUNTS = [9, 25, 3, 14, 21]
"""New tokens of each sequence: they join and leave in nearly every step."""


def new_cache(model, capacity: int):
    """Return a cache of one sequence."""
    (cache,) = model.new_caches(capacity, 1)
    return cache


def feed_tree(model, cache, tokens: Tensor, tree: TokenTree, requested_states: RequestedStates = NO_STATES) -> Output:
    """Feed all nodes of a tree after the committed tokens."""
    return model.forward([SequenceInput(cache, tokens, PassNodes.whole(tree))], requested_states)[0]


def level_of(tree: TokenTree, first: int, end: int) -> PassNodes:
    """Return the nodes of a tree from `first` to `end`; those before have been fed."""
    visible = np.ascontiguousarray(tree.ancestor_mask[first:end, :end])
    return PassNodes(visible=visible, depth=tree.depth[first:end], start=first)


def feed_tokens(model, cache, tokens: Sequence[int], requested_states: RequestedStates = NO_STATES) -> Output:
    """Feed tokens after the committed ones, each of which attends to those before it; nothing is committed."""
    ids = torch.tensor(list(tokens), dtype=torch.int64, device=model.device)
    return model.forward([SequenceInput.causal(cache, ids)], requested_states)[0]


def logits_after(model, text: Sequence[int], *, prefilled: int | None = None) -> Tensor:
    """Return the logits (V,) after a sequence, whose first `prefilled` tokens, by default all but the last, are prefilled."""
    cache, count = new_cache(model, len(text)), len(text) - 1 if prefilled is None else prefilled
    model.prefill(torch.tensor(list(text[:count]), dtype=torch.int64, device=model.device), cache)
    return feed_tokens(model, cache, text[count:]).logits[-1]


def count_fed_tokens(model, monkeypatch):
    """Return a list that each pass of a model adds its number of tokens to, those of all sequences."""
    counts, forward = [], model.forward

    def counted(inputs, *arguments, **options):
        counts.append(sum(len(sequence.tokens) for sequence in inputs))
        return forward(inputs, *arguments, **options)

    monkeypatch.setattr(model, "forward", counted)
    return counts
