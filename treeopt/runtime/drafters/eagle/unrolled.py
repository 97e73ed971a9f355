"""A head unrolled from many places of a text at once, over the tokens that the text goes on with."""

from collections.abc import Iterator

import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.models.attention import OneSequence
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import States, feed_text


def unrolled(head: EagleHead, states: States, tokens: Tensor, *, roots: int, steps: int) -> Iterator[Tensor]:
    """Yield what the head says at depth 1, 2, … below the last tokens of a text, each of them a root once.

    Depth d yields logits (roots - d + 1, V): of root s, given the d - 1 tokens that the text has behind it.  A root sees
    the slots of the text up to its own, made from the target's states, and those that it drafted itself, as in a step.

    Args:
        head: the head.
        states: of all tokens of the text but the last, (n, …).
        tokens: int64 (n,), the token behind each of them.
        roots: how many of them, the last ones.
        steps: depths, at most the roots.
    """
    slots = len(tokens)
    if not roots:
        return
    (cache,) = new_caches(head, slots + roots * (steps - 1), 1)
    first_root = slots - roots
    text = head.hidden(head.fuse(states), tokens, OneSequence.of(feed_text(cache, tokens)), begins=[0])
    fed = slots
    logits, feedback = _drafted(head, text[first_root:])
    yield logits
    own = torch.arange(roots, device=head.device)
    seen = torch.arange(slots, device=head.device) <= first_root + own[:, None]
    for step in range(1, steps):
        rows = roots - step
        # of the slots of each step before, a root sees the one that it drafted itself
        earlier = [own[: roots - each] == own[:rows, None] for each in range(1, step + 1)]
        visible = torch.cat([seen[:rows], *earlier], 1)
        mask = torch.zeros(visible.shape, dtype=head.dtype, device=head.device).masked_fill(~visible, float("-inf"))
        positions = first_root + step + own[:rows]
        place = OneSequence(cache, cache.rotations[positions], slice(fed, fed + rows), mask)
        logits, feedback = _drafted(head, head.hidden(feedback[:rows], tokens[first_root + step :], place))
        fed += rows
        yield logits


def _drafted(head: EagleHead, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and feedback of slots with a residual stream (n, hidden)."""
    output = head.output(hidden)
    assert output.states is not None  # heads return feedback
    assert output.states.last is not None
    return output.logits, output.states.last
