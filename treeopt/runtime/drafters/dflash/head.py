"""The network of a DFlash head: a block of mask tokens after the root attends to the target's fused hidden states.

The context has one row for each token before the root, made from the target's hidden states at some layers.  Its keys
and values are cached once; no layer changes the rows.  The block is the root and mask tokens, at the positions after the
context.  Every slot of the block predicts the token at its own position, or the next one if the head was trained shifted;
no slot sees what another predicts.  The Markov head of a DSpark head then makes draft tokens depend on their parent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.attention import (
    BatchedAttention,
    PassAttention,
    PerSequenceAttention,
    SequenceAttention,
)
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import (
    NO_STATES,
    PREFILL_TOKENS,
    HiddenStates,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
    concatenate,
)
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.padded_batch import PaddedPass, last_outputs
from treeopt.runtime.models.transformer import Layer, Network, Transformer, rms_norm

CONTEXT, MASK = -1, -2
"""Tokens of a pass that are no tokens of the vocabulary: rows of the context, and mask tokens."""


@dataclass(frozen=True)
class MarkovHead:
    """The Markov head of DSpark (arXiv 2607.05147): W2 W1[token], which a token adds to the logits of its children."""

    embedding: Tensor
    """(V, r): W1."""
    output: Callable[[Tensor], Tensor]
    """W2: from (n, r) to the target's tokens, (n, V); -inf for tokens that the head does not predict."""

    @property
    def rank(self) -> int:
        return self.embedding.shape[1]

    def bias(self, tokens: Tensor) -> Tensor:
        """Return the bias (..., V) after tokens, int64 (...)."""
        bias: Tensor = self.output(F.embedding(tokens.flatten(), self.embedding)).unflatten(0, tokens.shape)
        return bias


@dataclass(frozen=True, kw_only=True)
class DFlashHead(Network):
    """A head and the target that it was trained for; `load_dflash` reads it from a folder."""

    name: str
    target: Transformer
    config: ModelConfig
    """Of the head's layers."""
    requested_states: RequestedStates
    """Hidden states of the target that make the context."""
    fuse: Linear
    context_norm: Tensor
    """(hidden,): after `fuse`."""
    embedding: Tensor
    """(V, hidden): of the root."""
    mask: Tensor
    """(hidden,): the embedding of a mask token."""
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) before the attention of each layer."""
    norm: Tensor
    """(hidden,): before the output layer."""
    output: Callable[[Tensor], Tensor]
    """Logits over the target's tokens."""
    tokens: int
    """Tokens of the target's vocabulary that the head predicts."""
    block_tokens: int
    """Slots of a block, the root's included."""
    shifted: bool = False
    """Whether slot k predicts the token after its position, the root's slot included."""
    causal_layers: frozenset[int] = frozenset()
    """Layers in which a slot sees only the slots before it."""
    markov: MarkovHead | None = None
    """Of a DSpark head: changes the logits of a slot by the token before it."""

    @property
    def levels(self) -> int:
        """Draft tokens of one block."""
        return self.block_tokens - (0 if self.shifted else 1)

    def with_levels(self, levels: int) -> "DFlashHead":
        """Return the head with blocks of fewer draft tokens; raises InvalidValueError for more than it was trained for."""
        if not 1 <= levels <= self.levels:
            raise InvalidValueError(
                f"block_draft_tokens: expected 1 to {self.levels}, because {self.name} was trained for blocks of {self.levels}. Got "
                f"{levels}.",
                field="block_draft_tokens",
            )
        return replace(self, block_tokens=self.block_tokens - self.levels + levels)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for contexts of `capacity` tokens, adjacent in memory."""
        return super().new_caches(capacity + self.block_tokens, sequences)

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for a context of `capacity` tokens."""
        return super().cache_bytes(capacity + self.block_tokens)

    @cached_property
    def no_states(self) -> Tensor:
        """(0, layers * target's hidden): what `feed_block` takes if the context is complete."""
        width = len(self.requested_states.layer_ids) * self.target.config.hidden
        return torch.zeros((0, width), dtype=self.dtype, device=self.device)

    @property
    def max_rows(self) -> int:
        """Rows of the largest pass: context rows of a step in which all draft tokens were accepted, and a block."""
        return self.levels + 1 + self.block_tokens

    @torch.inference_mode()
    def read(self, states: HiddenStates, cache: KVCache) -> None:
        """Add rows to a context in chunks, given the target's hidden states at the tokens that follow it."""
        if len(states.layers[0]) == 0:
            return
        sizes = [len(chunk) for chunk in states.layers[0].split(PREFILL_TOKENS)]
        for chunk in states.split(sizes):
            self._read([concatenate_layers(chunk)], [cache])

    def _read(self, states: Sequence[Tensor], caches: Sequence[KVCache]) -> None:
        """Add rows to each context, given the concatenated states (n, layers * target's hidden) of each."""
        sizes = [len(new) for new in states]
        spans = [slice(cache.length, cache.length + size) for cache, size in zip(caches, sizes, strict=True)]
        context = rms_norm(self.fuse(concatenate(states)), self.context_norm, self.config)
        rotations = torch.cat([cache.rotations[span] for cache, span in zip(caches, spans, strict=True)])
        for number, layer in enumerate(self.layers):
            _, key, value = layer.project(context, rotations)
            for cache, span, new_key, new_value in zip(
                caches, spans, key.split(sizes, 2), value.split(sizes, 2), strict=True
            ):
                keys, values = cache.layers[number]
                keys[:, :, span], values[:, :, span] = new_key, new_value
        for cache, size in zip(caches, sizes, strict=True):
            cache.length += size

    @torch.inference_mode()
    def draft(self, roots: Sequence[int] | Tensor, caches: Sequence[KVCache]) -> Tensor:
        """Return logits (sequences, levels, V) after each root, without those of a Markov head; contexts do not change."""
        tokens = torch.as_tensor(roots, device=self.device)
        if len(caches) == 1:
            return self.predict(tokens, lambda layer: self._attention(caches[0], layer))
        return self.predict(
            tokens, lambda layer: PerSequenceAttention([self._attention(cache, layer) for cache in caches])
        )

    def predict(self, roots: Tensor, build_attention: Callable[[int], PassAttention]) -> Tensor:
        """Return logits (blocks, levels, V) of a block after each root, without those of a Markov head.

        The roots are int64 (blocks,); `build_attention` returns the attention of all blocks, given a layer index.
        """
        block = self.mask.expand(len(roots), self.block_tokens, -1).clone()
        block[:, 0] = F.embedding(roots, self.embedding)
        hidden = block.flatten(0, 1)
        for number, (layer, norm) in enumerate(zip(self.layers, self.input_norms, strict=True)):
            hidden = layer(rms_norm(hidden, norm, self.config), hidden, number, build_attention(number))
        predicting = hidden.view(block.shape)[:, self.block_tokens - self.levels :]
        normed = rms_norm(predicting.flatten(0, 1), self.norm, self.config)
        logits: Tensor = self.output(normed).unflatten(0, (len(roots), self.levels))
        return logits

    def feed_block(self, root: int, unread: Tensor, cache: KVCache) -> SequenceInput:
        """Return the rows that follow a context in a pass, and the block after them.

        `unread` has the concatenated states (n, layers * target's hidden) at the tokens between context and root.
        """
        rows = len(unread) + self.block_tokens
        tokens = torch.tensor([CONTEXT] * len(unread) + [root] + [MASK] * (self.block_tokens - 1))
        return SequenceInput(cache, tokens.to(self.device, non_blocking=True), _full_nodes(rows), unread)

    @torch.inference_mode()
    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,  # noqa: ARG002
        *,
        last_only: bool = False,
    ) -> Outputs:
        """Return the logits of the predicting slots, for inputs from `feed_block`, without those of a Markov head."""
        caches = [sequence.cache for sequence in inputs]
        lengths = [cache.length for cache in caches]
        unread = [sequence.features for sequence in inputs if sequence.features is not None]
        try:
            if any(map(len, unread)):
                self._read(unread, caches)
            logits = self.draft(torch.stack([sequence.tokens[-self.block_tokens] for sequence in inputs]), caches)
        finally:
            for cache, length in zip(caches, lengths, strict=True):
                cache.length = length
        outputs = Outputs(Output(logits.flatten(0, 1)), [self.levels] * len(inputs))
        return last_outputs(outputs) if last_only else outputs

    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:  # noqa: ARG002
        """Return the logits of all rows; those of context rows mean nothing."""
        assert padded.features is not None  # `feed_block` adds them, even if there are no context rows
        tokens = padded.tokens[:, None]
        is_context = tokens == CONTEXT
        context = rms_norm(self.fuse(padded.features), self.context_norm, self.config)
        hidden = torch.where(tokens >= 0, F.embedding(padded.tokens.clamp(min=0), self.embedding), self.mask)
        kinds = [(number in self.causal_layers, self.window(number)) for number in range(len(self.layers))]
        attentions = {kind: _attend_to_block(padded, causal=kind[0], window=kind[1]) for kind in dict.fromkeys(kinds)}
        for number, (layer, norm) in enumerate(zip(self.layers, self.input_norms, strict=True)):
            x = torch.where(is_context, context, rms_norm(hidden, norm, self.config))
            hidden = layer(x, hidden, number, attentions[kinds[number]])
        return Output(self.output(rms_norm(hidden, self.norm, self.config)))

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer in context tokens, None for full attention."""
        return self.config.sliding_window if layer in self.config.sliding_layers else None

    def _attention(self, cache: KVCache, layer: int) -> SequenceAttention:
        """Return the slots after a context; the next context rows overwrite them."""
        slots, window = slice(cache.length, cache.length + self.block_tokens), self.window(layer)
        first = 0 if window is None else max(0, cache.length - window)
        mask = None
        if layer in self.causal_layers:
            seen = torch.ones((self.block_tokens, slots.stop - first), dtype=torch.bool, device=self.device)
            mask = seen.tril(cache.length - first)
        return SequenceAttention(cache, cache.rotations[slots], slots, mask, first=first)


def concatenate_layers(states: HiddenStates) -> Tensor:
    """Return the states of n tokens as a head fuses them, (n, layers * hidden)."""
    return torch.cat(states.layers, -1)


@lru_cache(maxsize=64)
def _full_nodes(rows: int) -> PassNodes:
    """Return rows at consecutive positions that all attend to each other; layers hide some of them."""
    return PassNodes(depth=np.arange(rows), visible=np.ones((rows, rows), np.bool_))


def _attend_to_block(padded: PaddedPass, *, causal: bool, window: int | None) -> BatchedAttention:
    """Return the attention of a layer in a padded pass, as `DFlashHead._attention` has it without padding."""
    store, batch, mask = padded.store, padded.batch, padded.mask
    slots = torch.arange(batch.kv_length, device=mask.device)
    own_slots = padded.slots.view(batch.sequences, 1, batch.tokens, 1)  # on padding the slot after all others
    if causal:
        mask = mask.masked_fill(slots > own_slots, float("-inf"))
    if window is not None:
        others = (padded.tokens < 0) | (padded.slots == store.capacity)
        root_slots = padded.slots.masked_fill(others, 0).view(batch.sequences, -1).amax(1)
        mask = mask.masked_fill(slots < (root_slots - window).view(-1, 1, 1, 1), float("-inf"))
    return BatchedAttention.of_padded(padded._replace(mask=mask))
