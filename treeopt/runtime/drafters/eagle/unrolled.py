"""A head unrolled from many places of a text at once, over the tokens that the text goes on with."""

from collections.abc import Iterator

import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.layer import place_of, text_place
from treeopt.runtime.models.model import States


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
    cache = head.new_cache(slots + roots * (steps - 1))
    first_root = slots - roots
    text = head.hidden(head.fuse(states), tokens, text_place(cache, slots), begins=[0])
    draft, fed = head.output(text[first_root:]), slots
    yield draft.logits
    own = torch.arange(roots, device=head.device)
    seen = torch.arange(slots, device=head.device) <= first_root + own[:, None]
    for step in range(1, steps):
        rows = roots - step
        # of the slots of each step before, a root sees the one that it drafted itself
        earlier = [own[: roots - each] == own[:rows, None] for each in range(1, step + 1)]
        visible = torch.cat([seen[:rows], *earlier], 1)
        mask = torch.zeros(visible.shape, dtype=head.dtype, device=head.device).masked_fill(~visible, float("-inf"))
        place = place_of(cache, first_root + step + own[:rows], fed, mask)
        draft = head.output(head.hidden(draft.feedback[:rows], tokens[first_root + step :], place))
        fed += rows
        yield draft.logits
