"""Counting the acceptance of heads, depth by depth, on text that the target itself generated.

What a head predicts below a node depends on the tokens down to that node alone.  So every position of a text is taken as
a root once: the heads predict from the hidden states before it, and the text shows how far a step would have come.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.arrays import Int64
from treeopt.records.acceptance_counts import AcceptanceCounts
from treeopt.records.sampling import Sampling
from treeopt.runtime import Transformer
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.unrolled import unrolled
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.models.finite import check_logits, not_finite_error
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.model import States, Wants
from treeopt.runtime.rules.distributions import distribution

LAST = Wants(last=True)
BLOCKS = 16
"""Blocks of a DFlash head that share a pass."""


class HeadText(NamedTuple):
    """A generated text with the target's states and distributions: n places, each of them once the root of a step."""

    states: States
    """The target's, of the n tokens before the roots; of all tokens before them where the whole text was wanted."""
    distributions: Tensor
    """float32 (n, V): the target's, after each root; at temperature 0 all on one token."""
    tokens: Tensor
    """int64 (n,): what was sampled of them."""
    before: Tensor
    """int64 (m,): the text up to the first root, which is its last."""

    @property
    def hidden(self) -> Tensor:
        """(n, hidden): the target's last hidden state before each root, which Medusa's heads read."""
        assert self.states.last is not None  # it was wanted
        return self.states.last


@torch.inference_mode()
def head_text(
    target: Transformer, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, wants: Wants = LAST
) -> HeadText:
    """Return what heads are counted on along one text, from one pass of the target over it.

    Its first place is the prompt's last token, or the one after it where no hidden state stands before that.

    Args:
        target: what generated the text.
        prompt: token ids.
        tokens: what the target generated after it.
        sampling: how.
        wants: hidden states that the heads read.

    Raises TreeoptError where the target's logits are not finite.
    """
    text = torch.tensor([*prompt, *tokens], device=target.device)
    first = max(2, len(prompt))  # tokens up to the first root
    read = text[:-1]
    states = target.states(read, wants._replace(last=True))
    assert states.last is not None  # it was wanted
    logits = target.logits(states.last[first - 1 :])
    check_logits(target, "target", logits)
    wanted = states if wants.last else States(states.boundaries, None)
    return HeadText(
        wanted.rows(slice(0 if wants.whole_text else first - 2, len(read) - 1)),
        _distribution(logits, sampling),
        text[first:],
        text[:first],
    )


@torch.inference_mode()
def medusa_children(heads: MedusaHeads, text: HeadText, branching: int) -> Tensor:
    """Return the likeliest tokens of every head, int64 (n, D, B), below each of a text's roots."""
    logits, children = heads.likeliest(text.hidden, min(branching, text.distributions.shape[1]))
    if not bool(logits[..., 0].isfinite().all()):
        raise not_finite_error(heads.name, "draft model")
    return children


@torch.inference_mode()
def eagle_children(head: EagleHead, text: HeadText, branching: int, depths: int) -> Tensor:
    """Return the likeliest tokens, int64 (n, D, B), below each of a text's roots and the d - 1 tokens behind it.

    Where the text ends before a depth, the row holds zeros, which nobody may count.
    """
    places, count = len(text.tokens), min(branching, head.tokens)
    children = torch.zeros((places, depths, count), dtype=torch.int64, device=head.device)
    following = torch.cat([text.before[1:], text.tokens])[:-1]
    for depth, logits in enumerate(unrolled(head, text.states, following, roots=places, steps=min(depths, places))):
        likeliest = logits.topk(count)
        if not bool(likeliest.values[:, 0].isfinite().all()):
            raise not_finite_error(head.name, "draft model")
        children[: places - depth, depth] = likeliest.indices
    return children


@torch.inference_mode()
def dflash_children(head: DFlashHead, text: HeadText, branching: int) -> Tensor:
    """Return the likeliest tokens of every slot, int64 (n, D, B), of a block after each of a text's roots.

    The context of a root is all before it.  Blocks share passes, each hidden from the others.
    """
    before, count = len(text.before), min(branching, head.tokens)
    states = text.states
    (cache,) = head.new_caches(len(states.boundaries[0]), 1)
    head.read([states], [cache])
    roots = torch.cat([text.before[-1:], text.tokens[:-1]])
    children = []
    for start in range(0, len(roots), BLOCKS):
        chunk = roots[start : start + BLOCKS]
        contexts = before - 1 + start + np.arange(len(chunk))
        logits = head.predict(chunk, partial(_blocks_in_layer, head, cache, contexts))
        likeliest = logits.topk(count)
        if not bool(likeliest.values[..., 0].isfinite().all()):
            raise not_finite_error(head.name, "draft model")
        children.append(likeliest.indices)
    return torch.cat(children)


def _blocks_in_layer(head: DFlashHead, cache: KVCache, contexts: Int64, layer: int) -> "_Blocks":
    """Return where the slots of blocks after `contexts` tokens each stand in a layer."""
    slots = np.arange(head.block_tokens)
    positions = (contexts[:, None] + slots).ravel()
    owner = np.repeat(np.arange(len(contexts)), head.block_tokens)
    context = np.arange(cache.length)
    seen_context = context < contexts[owner][:, None]
    if (window := head.window(layer)) is not None:
        seen_context &= context >= contexts[owner][:, None] - window
    seen_block = owner[:, None] == owner
    if head.causal:
        seen_block &= positions[:, None] >= positions
    mask = torch.from_numpy(np.concatenate([seen_context, seen_block], axis=1)).to(head.device)
    rotations = cache.store.rotations[torch.from_numpy(positions).to(head.device)]
    return _Blocks(cache, rotations, mask)


class _Blocks(NamedTuple):
    """The slots of several blocks after different contexts in one cache; nothing is written there."""

    cache: KVCache
    rotations: Tensor
    mask: Tensor
    """bool (slots, context + slots): which keys each slot sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what the slots attend to; see `Place`."""
        context = (entries[:, :, : self.cache.length] for entries in self.cache.layers[layer])
        keys, values = (torch.cat([old, new], 2) for old, new in zip(context, (key, value), strict=True))
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)

    def within(self, window: int) -> "_Blocks":
        """Return itself: the mask of a layer includes its window."""
        del window
        return self


def children_counts(children: Tensor, text: HeadText) -> AcceptanceCounts:
    """Return the sums per depth, (D,) and (D, B), every place of a text taken as a root once.

    Root s counts for depth d when the tokens behind it were among the B likeliest of depths 1 … d - 1, and there with
    the target's probability of each child of depth d.

    Args:
        children: int64 (n, D, B), of root s at depth d the likeliest tokens, those behind the root being the text's.
        text: of n places.
    """
    places, depths, _ = children.shape
    reached, accepted = np.zeros(depths), np.zeros(children.shape[1:])
    reach = torch.ones(places, dtype=torch.float64, device=children.device)  # 1 where root s came to depth d
    for d in range(min(depths, places)):
        reach, below = reach[: places - d], children[: places - d, d]
        reached[d] = float(reach.sum())
        accepted[d] = (reach @ text.distributions[d:].gather(1, below).double()).cpu().numpy()
        reach = reach * (below == text.tokens[d:, None]).any(1)
    return AcceptanceCounts(reached, accepted)


def _distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return float32 (n, V): what tokens are sampled from, at temperature 0 all on the likeliest."""
    if sampling.greedy:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return distribution(logits, sampling)
