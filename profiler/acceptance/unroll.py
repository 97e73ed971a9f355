"""Unrolls an EAGLE head from many roots of a sequence at once, along the tokens that follow each."""

from collections.abc import Iterator

import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.models.attention import SequenceAttention
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, SequenceInput


def unroll(head: EagleHead, states: HiddenStates, tokens: Tensor, *, roots: int, steps: int) -> Iterator[Tensor]:
    """Yield the head's logits at depth 1, 2, … below the last tokens of a sequence, each of which is a root.

    Depth d yields logits (roots - d + 1, V), for root s given the d - 1 tokens after it.  As in a step, a root attends to
    the slots up to its own, made from the target's hidden states, and to the slots that it drafted itself.

    Args:
        head: the head.
        states: the target's at all tokens of the sequence but the last, (n, …).
        tokens: int64 (n,), the token after each of them.
        roots: number of roots, which are the last of these tokens.
        steps: depths, at most `roots`.
    """
    slots = len(tokens)
    if not roots:
        return
    tokens = head.first_slot_tokens(tokens)
    (cache,) = new_caches(head, slots + roots * (steps - 1), 1)
    first_root = slots - roots
    hidden = head.hidden(head.fuse(states), tokens, SequenceAttention.of(SequenceInput.causal(cache, tokens)))
    fed = slots
    logits, feedback = _predict(head, hidden[first_root:])
    yield logits
    index = torch.arange(roots, device=head.device)
    context = torch.arange(slots, device=head.device) <= first_root + index[:, None]
    for step in range(1, steps):
        rows = roots - step
        # of the slots of each earlier step, a root attends to the one that it drafted itself
        drafted = [index[: roots - earlier] == index[:rows, None] for earlier in range(1, step + 1)]
        visible = torch.cat([context[:rows], *drafted], 1)
        mask = torch.zeros(visible.shape, dtype=head.dtype, device=head.device).masked_fill(~visible, float("-inf"))
        positions = first_root + step + index[:rows]
        attention = SequenceAttention(cache, cache.rotations[positions], slice(fed, fed + rows), mask)
        logits, feedback = _predict(head, head.hidden(feedback[:rows], tokens[first_root + step :], attention))
        fed += rows
        yield logits


def _predict(head: EagleHead, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and feedback for a residual stream (n, hidden)."""
    output = head.output(hidden)
    assert output.states is not None  # heads return feedback
    assert output.states.last is not None
    return output.logits, output.states.last
