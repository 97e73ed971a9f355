"""A Llama-family transformer for one text at a time: prompts, single tokens and trees through the same layers."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.cache import KVCache
from treeopt.runtime.config import ModelConfig
from treeopt.runtime.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer; products that read the same input are joined."""

    attention_norm: Tensor
    query_key_value: Linear
    """(heads + 2 key_value_heads) * head_size outputs; rotary pairs of queries and keys stand side by side."""
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
    """Tokens in, logits out; the cache belongs to the caller, so one model serves many texts."""

    def __init__(self, config: ModelConfig, weights: Weights, *, name: str) -> None:
        self.config = config
        self.name = name
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.parameters = _count(weights, tied=config.tied_head)
        self._rotations = _rotations(config, 2 * config.max_positions).to(self.device)

    def new_cache(self, capacity: int) -> KVCache:
        """Return an empty cache for `capacity` tokens, tree nodes included."""
        return KVCache(self.config, capacity, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: KVCache) -> Tensor | None:
        """Commit a text, int64 (n,), to an empty cache; return the last hidden state, (1, hidden), None without text."""
        if len(tokens) == 0:
            return None
        slots = slice(0, len(tokens))
        states = self._layers(tokens, self._rotations[slots], cache, slots, len(tokens), None, causal=True)
        cache.length = len(tokens)
        return self._norm(states[-1:], self.weights.norm)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, cache: KVCache, mask: Tensor | None, *, start: int = 0
    ) -> Tensor:
        """Return logits (n, vocabulary) of n tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,).
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
        """Return the last hidden states (n, hidden), normed, of which `logits` makes what `forward` returns."""
        first = cache.length + start
        slots = slice(first, first + len(tokens))
        states = self._layers(tokens, self._rotations[positions], cache, slots, slots.stop, mask)
        return self._norm(states, self.weights.norm)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (n, vocabulary) of last hidden states (n, hidden)."""
        return self.weights.head(hidden)

    @torch.inference_mode()
    def forward_static(self, tokens: Tensor, positions: Tensor, cache: KVCache, slots: Tensor, mask: Tensor) -> Tensor:
        """Return what `forward` does, in shapes and work on the device that no text length changes.

        Args:
            tokens: int64 (n,).
            positions: int64 (n,), place of each token in the text.
            cache: its length is not read.
            slots: int64 (n,), where each token's keys and values are written.
            mask: (n, extent) to add to the attention scores of the first `extent` slots.
        """
        states = self._layers(tokens, self._rotations[positions], cache, slots, mask.shape[1], mask)
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
        """Return the hidden states (n, hidden) of tokens that are written to `slots` and see the first `extent`."""
        hidden = F.embedding(tokens, self.weights.embedding)
        for layer, (keys, values) in zip(self.weights.layers, cache.layers, strict=True):
            query, key, value = self._project(layer, hidden, rotations)
            keys[0, :, slots] = key
            values[0, :, slots] = value
            attended = F.scaled_dot_product_attention(
                query[None],
                keys[:, :, :extent],
                values[:, :, :extent],
                attn_mask=mask,
                is_causal=causal,
                enable_gqa=True,
            )
            hidden = hidden + layer.attention_output(attended[0].transpose(0, 1).flatten(1))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return hidden

    def _project(self, layer: Layer, hidden: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (its heads, n, head_size), the first two rotated."""
        config = self.config
        rotated_heads = config.heads + config.key_value_heads
        joined = layer.query_key_value(self._norm(hidden, layer.attention_norm)).unflatten(-1, (-1, config.head_size))
        rotated = _rotate(joined[:, :rotated_heads], rotations).transpose(0, 1)
        return rotated[: config.heads], rotated[config.heads :], joined[:, rotated_heads:].transpose(0, 1)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden,), weight, self.config.norm_epsilon)


def _rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Turn each pair of neighbouring numbers (n, heads, head_size) by the angle of its position (Su et al., 2021)."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)


def _rotations(config: ModelConfig, positions: int) -> Tensor:
    """Return complex64 (positions, 1, head_size / 2), e^(i * position * frequency)."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), config.rope_base**-exponents)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None, :]


def _count(weights: Weights, *, tied: bool) -> int:
    """Return the number of distinct parameters."""
    products = [w for x in weights.layers for w in (x.query_key_value, x.attention_output, x.gate_up, x.down)]
    norms = [w for x in weights.layers for w in (x.attention_norm, x.mlp_norm)]
    head = [] if tied else [weights.head]
    return sum(w.numel() for w in [weights.embedding, weights.norm, *norms]) + sum(
        w.parameters for w in [*products, *head]
    )
