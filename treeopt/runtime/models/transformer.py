"""A transformer of the Llama family: prompts, single tokens and trees of one text or a batch through the same layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.attention import Place, SharedPlace, WholeText
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Product, padded_rows
from treeopt.runtime.models.model import NOTHING, Output, RaggedOutputs, States, TextRows, Wants, check_boundaries
from treeopt.runtime.models.ragged_attention import ragged_place
from treeopt.runtime.models.rotary import Rotations, rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer; products that read the same input are joined."""

    attention_norm: Tensor
    query_key_value: Product
    """(heads + 2 key_value_heads) * head_size outputs; rotary pairs of queries and keys stand side by side."""
    head_norms: Tensor | None = None
    """(heads + key_value_heads, head_size): of the norm of each head of queries and keys, where the model has one."""
    attention_output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model on one device, in one dtype."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Product


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
        return KVCache.empty(self.config, capacity, batch_size, rotations=self._rotations, dtype=self.dtype)

    def new_caches(self, capacity: int, texts: int) -> list[KVCache]:
        """Return empty caches for `capacity` tokens of one text each, which lie side by side."""
        return self.new_cache(capacity, texts).texts()

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
    def prefill(self, tokens: Tensor, cache: KVCache, wants: Wants = NOTHING) -> States | None:
        """Commit texts, int64 (n,) or (batch, n), to an empty cache.

        Returns the states wanted of every token, or of the last, (1, hidden) or (batch, 1, hidden); None without text
        or where none are.
        """
        length = tokens.shape[-1]
        if length == 0:
            return None
        _check_texts(tokens, cache)
        tokens = self._padded(tokens, cache)
        slots = slice(0, tokens.shape[-1])
        place = SharedPlace(cache, cache.rotations[slots], slots, slots.stop, causal=True)
        if not wants.any:
            self._write_all(tokens, place)
            cache.length = length
            return None
        found = self._layers(tokens, place, wants)
        cache.length = length
        rows = slice(0 if wants.whole_text else length - 1, length)
        return self._states([each[..., rows, :] for each in found], wants)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        mask: Tensor | None,
        *,
        start: int = 0,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return logits, tokens.shape + (vocabulary,), and states of n tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text; siblings share one.
            cache: keys and values are written to slots length + start …; its length does not change.
            mask: (n, length + start + n) to add to the attention scores, or None when each token sees every slot.
            start: tree nodes that were fed before in this step.
            wants: hidden states.
        """
        first = cache.length + start
        slots = slice(first, first + tokens.shape[-1])
        _check_texts(tokens, cache)
        place = SharedPlace(cache, cache.rotations[positions], slots, slots.stop, mask)
        return self._output(self._layers(tokens, place, wants), wants)

    @torch.inference_mode()
    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        """Return what `forward` does of each of some texts, each in a cache of its own, from one pass over all of them."""
        place = ragged_place(parts, self.config.heads // self.config.key_value_heads)
        found = self._layers(torch.cat([part.tokens for part in parts]), place, wants)
        return RaggedOutputs(self._output(found, wants), [part.tokens.shape[0] for part in parts])

    def read(self, tokens: Tensor) -> Tensor:
        """Return logits, tokens.shape + (vocabulary,), after every token of whole texts, which are kept in no cache.

        Gradients can be computed through it, of weights that ask for them.
        """
        place = WholeText(self._rotations.up_to(tokens.shape[-1]))
        return self._output(self._layers(tokens, place, NOTHING), NOTHING).logits

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of last hidden states (..., hidden)."""
        return self.weights.head(hidden)

    @torch.inference_mode()
    def forward_static(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        slots: Tensor,
        mask: Tensor,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return what `forward` does, in shapes and work on the device that no text length changes.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text.
            cache: its length is not read.
            slots: int64 (n,), where each token's keys and values are written.
            mask: (n, extent) to add to the attention scores of the first `extent` slots.
            wants: hidden states.
        """
        _check_texts(tokens, cache)
        place = SharedPlace(cache, cache.rotations[positions], slots, mask.shape[1], mask)
        return self._output(self._layers(tokens, place, wants), wants)

    def _output(self, found: Sequence[Tensor], wants: Wants) -> Output:
        """Return logits and states, given the residual stream at the boundaries wanted and after all layers."""
        *boundaries, after_all = found
        last = self._norm(after_all, self.weights.norm)
        states = States(tuple(boundaries), last if wants.last else None) if wants.any else None
        return Output(self.weights.head(last), states)

    def _states(self, found: Sequence[Tensor], wants: Wants) -> States | None:
        """Return the states of `_output` without the logits."""
        *boundaries, after_all = found
        if not wants.any:
            return None
        return States(tuple(boundaries), self._norm(after_all, self.weights.norm) if wants.last else None)

    def _padded(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Return texts with their last token repeated behind them, which none before it sees, to one of few lengths."""
        length = tokens.shape[-1]
        padded = padded_rows(length, self.parameters)
        if self.device.type != "cpu" or padded > len(cache.rotations):
            return tokens
        return tokens[..., torch.arange(padded).clamp_(max=length - 1)]

    def _write_all(self, tokens: Tensor, place: SharedPlace) -> None:
        """Write keys and values of all layers; nothing else of the last one is needed for that."""
        *_, last = self.weights.layers
        (before,) = self._layers(tokens, place, NOTHING, len(self.weights.layers) - 1)
        batch = 1 if tokens.ndim == 1 else len(tokens)
        _, key, value = self._project(last, before.reshape(-1, before.shape[-1]), place.rotations, batch)
        place.write(len(self.weights.layers) - 1, key, value)

    def _layers(self, tokens: Tensor, place: Place, wants: Wants, count: int | None = None) -> list[Tensor]:
        """Return the residual stream of tokens at every boundary wanted, and last after so many layers, by default all."""
        check_boundaries(wants, self.config.layers, self.name)
        batch = 1 if tokens.ndim == 1 else len(tokens)
        hidden = F.embedding(tokens.reshape(-1), self.weights.embedding)  # (batch * n, hidden)
        at = {0: hidden}
        window, sliding_layers = self.config.sliding_window, self.config.sliding_layers
        sliding = place if window is None else place.within(window)
        for number, layer in enumerate(self.weights.layers[:count], start=1):
            query, key, value = self._project(layer, hidden, place.rotations, batch)
            layer_place = sliding if number - 1 in sliding_layers else place
            attended = layer_place.attend(number - 1, query, key, value)
            hidden = hidden + layer.attention_output(attended.transpose(1, 2).reshape(hidden.shape[0], -1))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
            if number in wants.boundaries:
                at[number] = hidden
        return [each.view(*tokens.shape, -1) for each in (*(at[boundary] for boundary in wants.boundaries), hidden)]

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


def _check_texts(tokens: Tensor, cache: KVCache) -> None:
    """Refuse tokens of another number of texts than a cache has."""
    if (1 if tokens.ndim == 1 else len(tokens)) != cache.batch_size:
        raise InvalidValueError(
            f"tokens: expected those of {cache.batch_size} texts, as the cache. Got {tuple(tokens.shape)}."
        )


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
