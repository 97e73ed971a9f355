"""The network of a DFlash head: a block of mask tokens after the root attends to the target's fused hidden states.

The context holds one row for each token before the root, made from the target's hidden states at some layers.  Its keys
and values go into a cache once; no layer changes the rows.  The block holds the root and mask tokens, at the positions
that follow the context.  Every slot of the block predicts the token at its own place, or the one after it where the head
was trained shifted; no slot sees what another one predicts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import InTurn, OneSequence, Place
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.layer import Layer, rms_norm
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import PREFILL_TOKENS, States, Wants
from treeopt.runtime.models.rotary import Rotations
from treeopt.runtime.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class DFlashHead:
    """A head and the target that it was trained for; `load_dflash` reads it from a folder."""

    name: str
    target: Transformer
    config: ModelConfig
    """Of the head's layers."""
    wants: Wants
    """Hidden states of the target that the context is made of."""
    fuse: Linear
    context_norm: Tensor
    """(hidden,): after `fuse`."""
    embedding: Tensor
    """(V, hidden): of the root."""
    mask: Tensor
    """(hidden,): the embedding of a mask token."""
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) of what attention reads in each layer."""
    norm: Tensor
    """(hidden,): before the output layer."""
    output: Callable[[Tensor], Tensor]
    """Logits over the target's tokens."""
    tokens: int
    """Of the target's vocabulary, how many the head predicts."""
    block_tokens: int
    """Slots of a block, the root's included."""
    shifted: bool = False
    """Whether slot k predicts the token after its place, the root's slot included."""
    causal: bool = False
    """Whether a slot sees only the slots before it."""

    @property
    def levels(self) -> int:
        """Draft tokens of one block."""
        return self.block_tokens - (0 if self.shifted else 1)

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The target's."""
        return self.embedding.dtype

    @cached_property
    def _rotations(self) -> Rotations:
        config = self.config
        return Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for contexts of `capacity` tokens, which lie side by side."""
        slots = capacity + self.block_tokens
        return KVStore.empty(self.config, slots, sequences, rotations=self._rotations, dtype=self.dtype).caches()

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for a context of `capacity` tokens."""
        return KVStore.sequence_bytes(self.config, capacity + self.block_tokens, self.dtype)

    def zero_states(self, tokens: int) -> States:
        """Return hidden states of the target for `tokens` tokens that are all zero, for timing."""
        zeros = torch.zeros((tokens, self.target.config.hidden), dtype=self.dtype, device=self.device)
        return States((zeros,) * len(self.wants.boundaries), None)

    @torch.inference_mode()
    def read(self, states: Sequence[States], caches: Sequence[KVCache]) -> None:
        """Add rows to the context of each sequence.

        Args:
            states: the target's, of the tokens that follow each context.
            caches: one for each.
        """
        sizes = [len(each.boundaries[0]) for each in states]
        if max(sizes, default=0) > PREFILL_TOKENS:
            for each, cache, size in zip(states, caches, sizes, strict=True):
                chunks = [min(PREFILL_TOKENS, size - start) for start in range(0, size, PREFILL_TOKENS)]
                for chunk in each.split(chunks):
                    self._read([chunk], [cache])
        elif sum(sizes):
            self._read(states, caches)

    def _read(self, states: Sequence[States], caches: Sequence[KVCache]) -> None:
        sizes = [len(each.boundaries[0]) for each in states]
        spans = [slice(cache.length, cache.length + size) for cache, size in zip(caches, sizes, strict=True)]
        taps = [torch.cat(layer) for layer in zip(*(each.boundaries for each in states), strict=True)]
        context = rms_norm(self.fuse(torch.cat(taps, -1)), self.context_norm, self.config)
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
        """Return logits (sequences, levels, V) after the root of each sequence; the contexts stay as they are."""
        tokens = torch.tensor(roots, device=self.device)
        if len(caches) == 1:
            return self.predict(tokens, lambda layer: self._place(caches[0], layer))
        return self.predict(tokens, lambda layer: InTurn([self._place(cache, layer) for cache in caches]))

    def predict(self, roots: Tensor, place_in: Callable[[int], Place]) -> Tensor:
        """Return logits (blocks, levels, V) of a block after each root.

        Args:
            roots: int64 (blocks,).
            place_in: from the number of a layer to where the slots of all blocks stand in it.
        """
        block = self.mask.expand(len(roots), self.block_tokens, -1).clone()
        block[:, 0] = F.embedding(roots, self.embedding)
        hidden = block.flatten(0, 1)
        for number, (layer, norm) in enumerate(zip(self.layers, self.input_norms, strict=True)):
            hidden = layer(rms_norm(hidden, norm, self.config), hidden, number, place_in(number))
        predicting = hidden.view(block.shape)[:, self.block_tokens - self.levels :]
        normed = rms_norm(predicting.flatten(0, 1), self.norm, self.config)
        logits: Tensor = self.output(normed).unflatten(0, (len(roots), self.levels))
        return logits

    def window(self, layer: int) -> int | None:
        """Return the tokens of context that a layer sees, None for all."""
        return self.config.sliding_window if layer in self.config.sliding_layers else None

    def _place(self, cache: KVCache, layer: int) -> OneSequence:
        """Return the slots after a context, which the next context rows write over."""
        slots, window = slice(cache.length, cache.length + self.block_tokens), self.window(layer)
        first = 0 if window is None else max(0, cache.length - window)
        mask = None
        if self.causal:
            seen = torch.ones((self.block_tokens, slots.stop - first), dtype=torch.bool, device=self.device)
            mask = seen.tril(cache.length - first)
        return OneSequence(cache, cache.rotations[slots], slots, mask, first=first)
