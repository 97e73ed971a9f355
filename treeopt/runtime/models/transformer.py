"""The networks that treeopt runs itself: a transformer of the Llama family, and the base that heads on it share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import (
    BatchedAttention,
    PassAttention,
    SequenceAttention,
    UncachedAttention,
    build_attention,
)
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.linear import Linear, pad_row_count
from treeopt.runtime.models.model import (
    NO_STATES,
    HiddenStates,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
    check_layer_ids,
    concatenate,
    prefill_in_chunks,
)
from treeopt.runtime.models.padded_batch import PaddedPass, last_rows
from treeopt.runtime.models.rotary import Rotations, rotate


class Network:
    """Layers with rotary positions, whose keys and values are in a `KVStore`.

    A subclass defines `run`, or other passes by `forward` and `run_padded`.
    """

    config: ModelConfig
    embedding: Tensor
    """(V, hidden)."""
    captures: ClassVar[bool] = True
    """Whether its passes can be captured as CUDA graphs."""

    @cached_property
    def device(self) -> torch.device:
        return self.embedding.device

    @cached_property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @cached_property
    def _rotations(self) -> Rotations:
        config = self.config
        return Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for `capacity` slots each, adjacent in memory."""
        store = KVStore.empty(self.config, capacity, sequences, rotations=self._rotations, dtype=self.dtype)
        return store.caches()

    def cache_bytes(self, capacity: int) -> int:
        return KVStore.sequence_bytes(self.config, capacity, self.dtype)

    @torch.inference_mode()
    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,
        *,
        last_only: bool = False,
    ) -> Outputs:
        sizes = [sequence.nodes.rows for sequence in inputs]
        features = [sequence.features for sequence in inputs if sequence.features is not None]
        output = self.run(
            concatenate([sequence.tokens for sequence in inputs]),
            build_attention(inputs),
            requested_states,
            features=concatenate(features) if features else None,
            last_of=sizes if last_only else None,
        )
        return Outputs(output, [1] * len(sizes) if last_only else sizes)

    @torch.inference_mode()
    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:
        return self.run(padded.tokens, BatchedAttention.of_padded(padded), requested_states, features=padded.features)

    def run(
        self,
        tokens: Tensor,
        attention: PassAttention,
        requested_states: RequestedStates,
        *,
        features: Tensor | None = None,
        last_of: Sequence[int] | None = None,
    ) -> Output:
        """Return logits and states of packed tokens.

        Args:
            tokens: int64 (rows,), sequence after sequence.
            attention: of the tokens.
            requested_states: hidden states to return.
            features: (rows, width), what a head reads along with the tokens.
            last_of: rows of each sequence, to return only the last row of each; None for all rows.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer without its input norm; products with the same input are concatenated."""

    config: ModelConfig
    query_key_value: Linear
    """(heads + 2 key_value_heads) * head_size outputs; rotary pairs of queries and keys are adjacent."""
    head_norms: Tensor | None = None
    """(heads + key_value_heads, head_size): norm weights of each query and key head, if the model has them."""
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, residual: Tensor, index: int, attention: PassAttention) -> Tensor:
        """Return the residual stream (rows, hidden) after the layer.

        The attention reads `x`, (rows, inputs), and its output is added to `residual`, (rows, hidden).
        """
        attended = attention.attend(index, *self.project(x, attention.rotations))
        hidden = residual + self.attention_output(attended.transpose(1, 2).reshape(residual.shape[0], -1))
        gate, up = self.gate_up(rms_norm(hidden, self.mlp_norm, self.config)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys, and values of sequences of n tokens, each (batch, heads, n, head_size).

        `x` is (batch * n, inputs); the rotations are those of n positions.
        """
        config = self.config
        rotated_heads = config.heads + config.key_value_heads
        projected = self.query_key_value(x)
        projected = projected.view(-1, rotations.shape[0], rotated_heads + config.key_value_heads, config.head_size)
        rotated = projected[:, :, :rotated_heads]
        if self.head_norms is not None:
            rotated = F.rms_norm(rotated, (config.head_size,), None, config.norm_epsilon) * self.head_norms
        rotated = rotate(rotated, rotations).transpose(1, 2)
        return rotated[:, : config.heads], rotated[:, config.heads :], projected[:, :, rotated_heads:].transpose(1, 2)


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Return x (..., width) scaled to a root mean square of 1, times a weight (width,)."""
    return F.rms_norm(x, x.shape[-1:], weight, config.norm_epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model on one device, in one dtype."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) per layer: norm before the attention."""
    norm: Tensor
    head: Linear

    @property
    def vectors(self) -> list[Tensor]:
        """The embedding, and all norms but those of heads."""
        return [self.embedding, self.norm, *self.input_norms, *(layer.mlp_norm for layer in self.layers)]

    @property
    def products(self) -> list[Linear]:
        """All products, the head last."""
        inner = [
            product
            for layer in self.layers
            for product in (layer.query_key_value, layer.attention_output, layer.gate_up, layer.down)
        ]
        return [*inner, self.head]


class Transformer(Network):
    """A `LanguageModel` of the Llama family with its own forward pass."""

    def __init__(self, config: ModelConfig, weights: Weights, *, name: str) -> None:
        self.config = config
        self.name = name
        self.weights = weights
        self.embedding = weights.embedding
        self.parameters = _count_parameters(weights, config)
        self.weight_bytes = self.parameters * self.dtype.itemsize

    def pass_bytes(self, tokens: int) -> int:
        # the peak is in the MLP: residual, its norm, both inner products, and their product
        return self.dtype.itemsize * tokens * (2 * self.config.hidden + 4 * self.config.intermediate)

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, cache: KVCache, requested_states: RequestedStates = NO_STATES
    ) -> HiddenStates | None:
        def run_chunk(chunk: Tensor) -> HiddenStates | None:
            padded = self._pad(chunk, cache)
            attention = SequenceAttention.of(SequenceInput.causal(cache, padded))
            if not requested_states.any:
                self._write_all(padded, attention)
                return None
            states = (hidden[: len(chunk)] for hidden in self._run_layers(padded, attention, requested_states))
            *layers, after_all = states
            return HiddenStates(tuple(layers), self._norm(after_all) if requested_states.last else None)

        return prefill_in_chunks(tokens, cache, run_chunk, requested_states)

    def run(
        self,
        tokens: Tensor,
        attention: PassAttention,
        requested_states: RequestedStates,
        *,
        features: Tensor | None = None,  # noqa: ARG002, heads read them
        last_of: Sequence[int] | None = None,
    ) -> Output:
        states = self._run_layers(tokens, attention, requested_states)
        if last_of is not None:
            states = [last_rows(hidden, last_of) for hidden in states]
        *layers, after_all = states
        last = self._norm(after_all)
        requested = HiddenStates(tuple(layers), last if requested_states.last else None)
        return Output(self.weights.head(last), requested if requested_states.any else None)

    def forward_uncached(self, tokens: Tensor) -> Tensor:
        """Return logits, tokens.shape + (vocabulary,), of whole sequences without a cache, differentiably."""
        attention = UncachedAttention(self._rotations.up_to(tokens.shape[-1]))
        (hidden,) = self._run_layers(tokens, attention, NO_STATES)
        return self.weights.head(self._norm(hidden)).view(*tokens.shape, -1)

    @torch.inference_mode()
    def compute_states(self, tokens: Tensor, requested_states: RequestedStates) -> HiddenStates:
        """Return the requested states, tokens.shape + (hidden,), of whole sequences without a cache."""
        attention = UncachedAttention(self._rotations.up_to(tokens.shape[-1]))
        states = self._run_layers(tokens, attention, requested_states)
        *layers, after_all = (hidden.view(*tokens.shape, -1) for hidden in states)
        return HiddenStates(tuple(layers), self._norm(after_all) if requested_states.last else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of last hidden states (..., hidden)."""
        return self.weights.head(hidden)

    def _pad(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Pad to one of a few lengths by repeating the last token, to which no token before it attends."""
        length = len(tokens)
        padded = pad_row_count(length, self.parameters)
        if self.device.type != "cpu" or cache.length + padded > min(cache.capacity, len(cache.rotations)):
            return tokens
        return tokens[torch.arange(padded).clamp_(max=length - 1)]

    def _write_all(self, tokens: Tensor, attention: SequenceAttention) -> None:
        """Write keys and values of all layers, without the rest of the last layer."""
        weights, last = self.weights, len(self.weights.layers) - 1
        (hidden,) = self._run_layers(tokens, attention, NO_STATES, last)
        normed = rms_norm(hidden, weights.input_norms[last], self.config)
        _, key, value = weights.layers[last].project(normed, attention.rotations)
        attention.write(last, key, value)

    def _run_layers(
        self, tokens: Tensor, attention: PassAttention, requested_states: RequestedStates, count: int | None = None
    ) -> list[Tensor]:
        """Return the residual stream (rows, hidden) at each requested layer id, then after the first `count` layers or all."""
        check_layer_ids(requested_states, self.config.layers, self.name)
        hidden = F.embedding(tokens.reshape(-1), self.weights.embedding)
        states = {0: hidden}
        window, sliding_layers = self.config.sliding_window, self.config.sliding_layers
        sliding = attention if window is None else attention.with_window(window)
        layers = zip(self.weights.layers, self.weights.input_norms, strict=True)
        for index, (layer, norm) in enumerate(islice(layers, count)):
            normed = rms_norm(hidden, norm, self.config)
            hidden = layer(normed, hidden, index, sliding if index in sliding_layers else attention)
            if index + 1 in requested_states.layer_ids:
                states[index + 1] = hidden
        return [*(states[layer_id] for layer_id in requested_states.layer_ids), hidden]

    def _norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weights.norm, self.config)


def _count_parameters(weights: Weights, config: ModelConfig) -> int:
    products = weights.products[: -1 if config.tied_head else None]
    head_norms = 2 * config.head_size * config.layers if config.head_norms else 0  # all heads of a layer share two
    return (
        head_norms + sum(tensor.numel() for tensor in weights.vectors) + sum(product.parameters for product in products)
    )
