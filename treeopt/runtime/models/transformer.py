"""A transformer of the Llama family: prompts, single tokens and trees of one text or a batch through the same layers."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.rotary import Rotations, rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer; products that read the same input are joined."""

    attention_norm: Tensor
    query_key_value: Linear
    """(heads + 2 key_value_heads) * head_size outputs; rotary pairs of queries and keys stand side by side."""
    head_norms: Tensor | None = None
    """(heads + key_value_heads, head_size): of the norm of each head of queries and keys, where the model has one."""
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model on one device, in one dtype."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


class Transformer:
    """Tokens in, logits out; the cache belongs to the caller, so one model serves many texts.

    Tokens are int64 (n,), or (batch, n) with a cache for as many texts; results have the same leading shape.
    Positions and mask are shared by all texts of a batch. Raises InvalidValueError for another batch than the cache's.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, name: str) -> None:
        self.config = config
        self.name = name
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.parameters = _count(weights, config)
        self._rotations = Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_cache(self, capacity: int, batch_size: int = 1) -> KVCache:
        """Return an empty cache for `capacity` tokens of each text, tree nodes included."""
        return KVCache(self.config, capacity, batch_size, rotations=self._rotations, dtype=self.dtype)

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of keys and values in a cache for `capacity` tokens of each text."""
        config = self.config
        token = 2 * config.layers * config.key_value_heads * config.head_size
        return self.dtype.itemsize * token * capacity * batch_size

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many tokens takes for a moment, logits left out.

        That is in the MLP: the residual and its norm, both inner products, and what is made of them.
        """
        return self.dtype.itemsize * tokens * (2 * self.config.hidden + 4 * self.config.intermediate)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: KVCache) -> Tensor | None:
        """Commit texts, int64 (n,) or (batch, n), to an empty cache.

        Returns the last hidden state, (1, hidden) or (batch, 1, hidden), None without text.
        """
        length = tokens.shape[-1]
        if length == 0:
            return None
        slots = slice(0, length)
        states = self._layers(tokens, cache.rotations[slots], cache, slots, length, None, causal=True)
        cache.length = length
        return self._norm(states[..., -1:, :], self.weights.norm)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, cache: KVCache, mask: Tensor | None, *, start: int = 0
    ) -> Tensor:
        """Return logits, tokens.shape + (vocabulary,), of n tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text; siblings share one.
            cache: keys and values are written to slots length + start …; its length does not change.
            mask: (n, length + start + n) to add to the attention scores, or None when each token sees every slot.
            start: tree nodes that were fed before in this step.
        """
        return self.logits(self.hidden(tokens, positions, cache, mask, start=start))

    @torch.inference_mode()
    def hidden(
        self, tokens: Tensor, positions: Tensor, cache: KVCache, mask: Tensor | None, *, start: int = 0
    ) -> Tensor:
        """Return the last hidden states, tokens.shape + (hidden,), normed, of which `logits` makes `forward`'s."""
        first = cache.length + start
        slots = slice(first, first + tokens.shape[-1])
        states = self._layers(tokens, cache.rotations[positions], cache, slots, slots.stop, mask)
        return self._norm(states, self.weights.norm)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of last hidden states (..., hidden)."""
        return self.weights.head(hidden)

    @torch.inference_mode()
    def forward_static(self, tokens: Tensor, positions: Tensor, cache: KVCache, slots: Tensor, mask: Tensor) -> Tensor:
        """Return what `forward` does, in shapes and work on the device that no text length changes.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text.
            cache: its length is not read.
            slots: int64 (n,), where each token's keys and values are written.
            mask: (n, extent) to add to the attention scores of the first `extent` slots.
        """
        states = self._layers(tokens, cache.rotations[positions], cache, slots, mask.shape[1], mask)
        return self.logits(self._norm(states, self.weights.norm))

    def _layers(
        self,
        tokens: Tensor,
        rotations: Tensor,
        cache: KVCache,
        slots: slice | Tensor,
        extent: int,
        mask: Tensor | None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Return the hidden states of tokens that are written to `slots` and see the first `extent`."""
        batch, rows = cache.batch_size, tokens.shape[-1]
        if tokens.numel() != batch * rows:
            raise InvalidValueError(
                f"tokens: expected those of {batch} texts, as the cache. Got {tuple(tokens.shape)}."
            )
        hidden = F.embedding(tokens.reshape(-1), self.weights.embedding)  # (batch * rows, hidden)
        for layer, (keys, values) in zip(self.weights.layers, cache.layers, strict=True):
            query, key, value = self._project(layer, hidden, rotations, batch)
            keys[:, :, slots] = key
            values[:, :, slots] = value
            attended = F.scaled_dot_product_attention(
                query,
                keys[:, :, :extent],
                values[:, :, :extent],
                attn_mask=mask,
                is_causal=causal,
                enable_gqa=True,
            )
            hidden = hidden + layer.attention_output(attended.transpose(1, 2).reshape(batch * rows, -1))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return hidden.view(*tokens.shape, -1)

    def _project(self, layer: Layer, hidden: Tensor, rotations: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, its heads, n, head_size), the first two rotated."""
        config = self.config
        turned_heads = config.heads + config.key_value_heads
        joined = layer.query_key_value(self._norm(hidden, layer.attention_norm))
        joined = joined.view(batch, -1, turned_heads + config.key_value_heads, config.head_size)
        turned = joined[:, :, :turned_heads]
        if layer.head_norms is not None:
            turned = F.rms_norm(turned, (config.head_size,), None, config.norm_epsilon) * layer.head_norms
        turned = rotate(turned, rotations).transpose(1, 2)
        return turned[:, : config.heads], turned[:, config.heads :], joined[:, :, turned_heads:].transpose(1, 2)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden,), weight, self.config.norm_epsilon)


def _count(weights: Weights, config: ModelConfig) -> int:
    """Return the number of distinct parameters."""
    products = [w for x in weights.layers for w in (x.query_key_value, x.attention_output, x.gate_up, x.down)]
    norms = [w for x in weights.layers for w in (x.attention_norm, x.mlp_norm)]
    head = [] if config.tied_head else [weights.head]
    head_norms = 2 * config.head_size * config.layers if config.head_norms else 0  # one for queries, one for keys
    return (
        head_norms
        + sum(w.numel() for w in [weights.embedding, weights.norm, *norms])
        + sum(w.parameters for w in [*products, *head])
    )
