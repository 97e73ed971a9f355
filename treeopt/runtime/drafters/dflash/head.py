"""The network of a DFlash head: a block of mask tokens after the root attends to the target's fused hidden states.

The context has one row for each token before the root, made from the target's hidden states at some layers.  Its keys
and values are cached once; no layer changes the rows.  The block is the root and mask tokens, at the positions after the
context.  Every slot of the block predicts the token at its own position, or the next one if the head was trained shifted;
no slot sees what another predicts.  The Markov head of a DSpark head then makes draft tokens depend on their parent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.attention import PassAttention, PerSequenceAttention, SequenceAttention
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import PREFILL_TOKENS, HiddenStates, RequestedStates
from treeopt.runtime.models.rotary import Rotations
from treeopt.runtime.models.transformer import Layer, Transformer, rms_norm


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
class DFlashHead:
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

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @cached_property
    def _rotations(self) -> Rotations:
        config = self.config
        return Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for contexts of `capacity` tokens, adjacent in memory."""
        slots = capacity + self.block_tokens
        return KVStore.empty(self.config, slots, sequences, rotations=self._rotations, dtype=self.dtype).caches()

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for a context of `capacity` tokens."""
        return KVStore.sequence_bytes(self.config, capacity + self.block_tokens, self.dtype)

    @torch.inference_mode()
    def read(self, states: Sequence[HiddenStates], caches: Sequence[KVCache]) -> None:
        """Add rows to the context of each sequence.

        Args:
            states: the target's, at the tokens that follow each context.
            caches: one for each sequence.
        """
        sizes = [len(new.layers[0]) for new in states]
        if max(sizes, default=0) > PREFILL_TOKENS:
            for new, cache, size in zip(states, caches, sizes, strict=True):
                chunks = [min(PREFILL_TOKENS, size - start) for start in range(0, size, PREFILL_TOKENS)]
                for chunk in new.split(chunks):
                    self._read([chunk], [cache])
        elif sum(sizes):
            self._read(states, caches)

    def _read(self, states: Sequence[HiddenStates], caches: Sequence[KVCache]) -> None:
        sizes = [len(new.layers[0]) for new in states]
        spans = [slice(cache.length, cache.length + size) for cache, size in zip(caches, sizes, strict=True)]
        layers = [torch.cat(parts) for parts in zip(*(new.layers for new in states), strict=True)]
        context = rms_norm(self.fuse(torch.cat(layers, -1)), self.context_norm, self.config)
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
    def draft(self, roots: Sequence[int], caches: Sequence[KVCache]) -> Tensor:
        """Return logits (sequences, levels, V) after the root of each sequence, without those of a Markov head.

        The contexts are not changed.
        """
        tokens = torch.tensor(roots, device=self.device)
        if len(caches) == 1:
            return self.predict(tokens, lambda layer: self._attention(caches[0], layer))
        return self.predict(
            tokens, lambda layer: PerSequenceAttention([self._attention(cache, layer) for cache in caches])
        )

    def predict(self, roots: Tensor, build_attention: Callable[[int], PassAttention]) -> Tensor:
        """Return logits (blocks, levels, V) of a block after each root, without those of a Markov head.

        Args:
            roots: int64 (blocks,).
            build_attention: returns the attention of all blocks, given a layer index.
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
