"""Counting the acceptance of heads, depth by depth, on sequences that the target generated.

The predictions of a head below a node depend only on the tokens down to that node.  So every position of a sequence is the
root of a step once: the heads predict from the hidden states before it, and the sequence shows how far the step would
have come.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.arrays import Float64, Int64
from treeopt.records.acceptance_counts import REJECTED, AcceptanceCounts
from treeopt.records.sampling import Sampling
from treeopt.runtime import Transformer
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.draft_model import top_children
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.p_eagle import PEagleHead
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.models.attention import SequenceAttention
from treeopt.runtime.models.finite import check_logits, not_finite_error
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, RequestedStates, SequenceInput
from treeopt.runtime.rules.distributions import distribution

LAST = RequestedStates(last=True)
BLOCKS_PER_PASS = 16


class HeadSequence(NamedTuple):
    """A generated sequence with the target's states and distributions: n positions, each the root of a step once."""

    states: HiddenStates
    """The target's, of the n tokens before the roots, or of all tokens before them if the whole sequence was requested."""
    distributions: Tensor
    """float32 (n, V): the target's, after each root; one-hot at temperature 0."""
    tokens: Tensor
    """int64 (n,): sampled from these distributions."""
    before: Tensor
    """int64 (m,): the sequence up to and including the first root."""

    @property
    def hidden(self) -> Tensor:
        """(n, hidden): the target's last hidden state before each root, the input of Medusa's heads."""
        assert self.states.last is not None  # it was requested
        return self.states.last

    @property
    def following(self) -> Tensor:
        """int64: the token after each of the tokens before the last root, the input of EAGLE heads."""
        return torch.cat([self.before[1:], self.tokens])[:-1]


@torch.inference_mode()
def build_head_sequence(
    target: Transformer,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    requested_states: RequestedStates = LAST,
) -> HeadSequence:
    """Return a sequence with the states and distributions of one target pass over it.

    The first root is the prompt's last token, or the one after it if no hidden state precedes that.

    Args:
        target: the model that generated the tokens.
        prompt: token ids.
        tokens: what the target generated after the prompt.
        sampling: how the tokens were sampled.
        requested_states: hidden states that the heads read.

    Raises TreeoptError if the target's logits are not finite.
    """
    sequence = torch.tensor([*prompt, *tokens], device=target.device)
    first = max(2, len(prompt))  # tokens up to the first root
    inputs = sequence[:-1]
    states = target.compute_states(inputs, requested_states._replace(last=True))
    assert states.last is not None  # it was requested
    logits = target.logits(states.last[first - 1 :])
    check_logits(target, "target", logits)
    requested = states if requested_states.last else HiddenStates(states.layers, None)
    start = 0 if requested_states.all_tokens else first - 2
    return HeadSequence(
        requested.map(lambda layer: layer[start : len(inputs) - 1]),
        F.one_hot(logits.argmax(-1), logits.shape[-1]).float() if sampling.greedy else distribution(logits, sampling),
        sequence[first:],
        sequence[:first],
    )


Heads = MedusaHeads | EagleHead | PEagleHead | DFlashHead


def head_children(heads: Heads, sequence: HeadSequence, branching: int, depths: int) -> Tensor:
    """Return the likeliest tokens of heads at every depth, int64 (n, D, B), below each root of a sequence.

    `depths` is D for an EAGLE head; other heads have their own.
    """
    if isinstance(heads, PEagleHead):
        return p_eagle_children(heads, sequence, branching)
    if isinstance(heads, EagleHead):
        return eagle_children(heads, sequence, branching, depths)
    if isinstance(heads, DFlashHead):
        return dflash_children(heads, sequence, branching)
    return medusa_children(heads, sequence, branching)


@torch.inference_mode()
def medusa_children(heads: MedusaHeads, sequence: HeadSequence, branching: int) -> Tensor:
    """Return the likeliest tokens of every head, int64 (n, D, B), below each root of a sequence."""
    return _likeliest(heads.name, heads.logits(sequence.hidden), min(branching, heads.tokens))


@torch.inference_mode()
def eagle_children(head: EagleHead, sequence: HeadSequence, branching: int, depths: int) -> Tensor:
    """Return the likeliest tokens, int64 (n, D, B), below each root and the d - 1 tokens after it.

    Rows are zero where the sequence ends before a depth; `count_children` skips them.
    """
    positions, count = len(sequence.tokens), min(branching, head.tokens)
    children = torch.zeros((positions, depths, count), dtype=torch.int64, device=head.device)
    steps = min(depths, positions)
    for depth, logits in enumerate(_unroll(head, sequence.states, sequence.following, roots=positions, steps=steps)):
        children[: positions - depth, depth] = _likeliest(head.name, logits, count)
    return children


def _unroll(head: EagleHead, states: HiddenStates, tokens: Tensor, *, roots: int, steps: int) -> Iterator[Tensor]:
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


@torch.inference_mode()
def p_eagle_children(head: PEagleHead, sequence: HeadSequence, branching: int) -> Tensor:
    """Return the likeliest tokens of every level, int64 (n, D, B), below each root of a sequence.

    The slots of the deeper levels of several roots share passes, and are hidden from each other.
    """
    count, following = min(branching, head.tokens), sequence.following
    positions = len(sequence.tokens)
    children = torch.zeros((positions, head.levels, count), dtype=torch.int64, device=head.device)
    if not positions:
        return children
    first_root = len(following) - positions
    (cache,) = new_caches(head, len(following) + head.levels, 1)
    attention = SequenceAttention.of(SequenceInput.causal(cache, following))
    hidden = head.hidden(head.fuse(sequence.states), following, attention)
    cache.length = len(following)
    children[:, 0] = _likeliest(head.name, head.output(hidden[first_root:]).logits, count)
    masks = head.levels - 1
    for start in range(0, positions if masks else 0, BLOCKS_PER_PASS):
        roots = np.arange(start, min(start + BLOCKS_PER_PASS, positions))
        blocks = _attend_in_blocks(cache, first_root + 1 + roots, masks, causal=True)
        logits = head.output(head.hidden(*head.mask_slots(len(roots) * masks), blocks)).logits
        children[roots, 1:] = _likeliest(head.name, logits.unflatten(0, (len(roots), masks)), count)
    return children


@torch.inference_mode()
def dflash_children(head: DFlashHead, sequence: HeadSequence, branching: int) -> Tensor:
    """Return the likeliest tokens of every slot, int64 (n, D, B), of the block after each root of a sequence.

    With a Markov head, the tokens of depth d are those below the d - 1 tokens after the root; where the sequence ends
    before, they mean nothing, and `count_children` skips them.
    """
    count = min(branching, head.tokens)
    return torch.cat([_likeliest(head.name, logits, count) for logits in _block_logits(head, sequence)])


def _likeliest(name: str, logits: Tensor, count: int) -> Tensor:
    """Return the likeliest tokens, int64 (…, count); raises TreeoptError if logits (…, V) are not finite."""
    likeliest = logits.topk(count)
    if not bool(likeliest.values[..., 0].isfinite().all()):
        raise not_finite_error(name, "draft model")
    return likeliest.indices


class BlockMarginals(NamedTuple):
    """The top tokens of every slot of the block after each of n roots, and the sequence's tokens among them."""

    log_probs: Float64
    """float64 (n, D, K): of the top tokens at temperature 1, in falling order."""
    ranks: Int64
    """int64 (n, D): rank of the sequence's token in each slot, `REJECTED` if it is not among them or the sequence ends."""


@torch.inference_mode()
def block_marginals(head: DFlashHead, sequence: HeadSequence, count: int) -> BlockMarginals:
    """Return the `count` top tokens of every slot below each root of a sequence."""
    ranked = [top_children(logits, min(count, head.tokens)) for logits in _block_logits(head, sequence)]
    log_probs, tokens = (torch.cat(parts) for parts in zip(*ranked, strict=True))
    if not bool(log_probs[..., 0].isfinite().all()):
        raise not_finite_error(head.name, "draft model")
    return BlockMarginals(log_probs.double().cpu().numpy(), child_ranks(tokens, sequence.tokens))


def _block_logits(head: DFlashHead, sequence: HeadSequence) -> Iterator[Tensor]:
    """Yield the logits (blocks, D, V) of the blocks after the roots of a sequence, some blocks at a time.

    Blocks share passes, and are hidden from each other.
    """
    before, states = len(sequence.before), sequence.states
    (cache,) = head.new_caches(len(states.layers[0]), 1)
    head.read(states, cache)
    roots = torch.cat([sequence.before[-1:], sequence.tokens[:-1]])
    parents = F.pad(roots, (0, head.levels - 1)).unfold(0, head.levels, 1)
    for start in range(0, len(roots), BLOCKS_PER_PASS):
        chunk = roots[start : start + BLOCKS_PER_PASS]
        contexts = before - 1 + start + np.arange(len(chunk))
        logits = head.predict(chunk, partial(_blocks_in_layer, head, cache, contexts))
        if head.markov is not None:
            logits = logits + head.markov.bias(parents[start : start + BLOCKS_PER_PASS])
        yield logits


def _blocks_in_layer(head: DFlashHead, cache: KVCache, contexts: Int64, layer: int) -> "_Blocks":
    return _attend_in_blocks(
        cache, contexts, head.block_tokens, causal=layer in head.causal_layers, window=head.window(layer)
    )


def _attend_in_blocks(
    cache: KVCache, contexts: Int64, block_tokens: int, *, causal: bool, window: int | None = None
) -> "_Blocks":
    """Return the attention of the slots of blocks, which are hidden from each other.

    Args:
        cache: of the contexts, which are the beginnings of one sequence.
        contexts: (blocks,), tokens before each block.
        block_tokens: slots of each block.
        causal: whether a slot sees only the slots before it.
        window: sliding window in context tokens; None for full attention.
    """
    positions = (contexts[:, None] + np.arange(block_tokens)).ravel()
    owner = np.repeat(np.arange(len(contexts)), block_tokens)
    context = np.arange(cache.length)
    seen_context = context < contexts[owner][:, None]
    if window is not None:
        seen_context &= context >= contexts[owner][:, None] - window
    seen_block = owner[:, None] == owner
    if causal:
        seen_block &= positions[:, None] >= positions
    rotations = cache.store.rotations
    mask = torch.from_numpy(np.concatenate([seen_context, seen_block], axis=1)).to(rotations.device)
    return _Blocks(cache, rotations[torch.from_numpy(positions).to(rotations.device)], mask)


class _Blocks(NamedTuple):
    """The attention of several blocks after different contexts in one cache, which stays unchanged."""

    cache: KVCache
    rotations: Tensor
    mask: Tensor
    """bool (slots, context + slots): which keys each slot sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context = (entries[:, :, : self.cache.length] for entries in self.cache.layers[layer])
        keys, values = (torch.cat([old, new], 2) for old, new in zip(context, (key, value), strict=True))
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)

    def with_window(self, window: int) -> "_Blocks":
        del window  # the mask of a layer includes its window
        return self


def child_ranks(children: Tensor, tokens: Tensor) -> Int64:
    """Return int64 (n, D): the rank of the sequence's token at each depth below each root, `REJECTED` for none.

    Args:
        children: int64 (n, D, B), at depth d below root s.
        tokens: int64 (n,), the sequence after the first root.
    """
    positions, depths, _ = children.shape
    ranks = np.full((positions, depths), REJECTED, np.int64)
    for depth in range(min(depths, positions)):
        hits = children[: positions - depth, depth] == tokens[depth:, None]
        rank = torch.where(hits.any(1), hits.int().argmax(1), REJECTED)
        ranks[: len(rank), depth] = rank.cpu().numpy()
    return ranks


def count_children(children: Tensor, sequence: HeadSequence) -> AcceptanceCounts:
    """Return the sums per depth, (D,) and (D, B), with every position of a sequence as a root once.

    Root s counts for depth d if the tokens after it were among the B likeliest of depths 1 … d - 1.  Its summand is the
    target's probability of each child of depth d.

    Args:
        children: int64 (n, D, B): the likeliest tokens at depth d below root s, after the sequence's own tokens.
        sequence: of n positions.
    """
    positions, depths, _ = children.shape
    reached, accepted = np.zeros(depths), np.zeros(children.shape[1:])
    reach = torch.ones(positions, dtype=torch.float64, device=children.device)  # 1 if root s reaches depth d
    for d in range(min(depths, positions)):
        reach, level = reach[: positions - d], children[: positions - d, d]
        reached[d] = float(reach.sum())
        accepted[d] = (reach @ sequence.distributions[d:].gather(1, level).double()).cpu().numpy()
        reach = reach * (level == sequence.tokens[d:, None]).any(1)
    return AcceptanceCounts(reached, accepted)
