"""The network of an EAGLE head: a small decoder over the target's hidden states and the following tokens.

Slot j of a sequence reads the target's hidden state at token j and the embedding of token j + 1, at position j, and
predicts token j + 2.  The slot of a drafted token reads the head's own output at its parent, its feedback, in place of
the target's hidden state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.drafters.head_files import OutputLayer
from treeopt.runtime.models.attention import BatchedAttention, PassAttention, SequenceAttention, build_attention
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache, KVStore
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
from treeopt.runtime.models.padded_batch import PaddedPass, last_rows
from treeopt.runtime.models.rotary import Rotations
from treeopt.runtime.models.transformer import Layer, Transformer, rms_norm


class LayerInput(NamedTuple):
    """The input of the first layer."""

    attention_input: Tensor
    """(n, inputs)."""
    residual: Tensor
    """(n, hidden)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFusion:
    """Fuses the target's hidden states at a token: EAGLE-3's `fc`, or the last state as it is."""

    requested_states: RequestedStates
    config: ModelConfig
    each_norm: tuple[Tensor, ...] = ()
    """(H,) for each of the states, if they are normalised one by one."""
    norm: Tensor | None = None
    """(states * H,), if they are normalised together."""
    fc: Linear | None = None

    def __call__(self, states: HiddenStates) -> Tensor:
        """Return x (n, hidden) for the states of n tokens."""
        if self.fc is None:
            assert states.last is not None  # it was requested
            return states.last
        layers: Sequence[Tensor] = states.layers
        if self.each_norm:
            layers = [rms_norm(x, w, self.config) for x, w in zip(layers, self.each_norm, strict=True)]
        x = torch.cat(list(layers), -1)
        return self.fc(x if self.norm is None else rms_norm(x, self.norm, self.config))


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Input:
    """EAGLE-3: attention reads the concatenation of normalised embedding and normalised x (Li et al., 2025, section 3)."""

    config: ModelConfig
    embedding_norm: Tensor
    hidden_norm: Tensor
    normed_residual: bool
    """Whether attention's output is added to the normalised x instead of x itself."""

    def __call__(self, embedded: Tensor, x: Tensor) -> LayerInput:
        normed = rms_norm(x, self.hidden_norm, self.config)
        attention_input = torch.cat([rms_norm(embedded, self.embedding_norm, self.config), normed], -1)
        return LayerInput(attention_input, normed if self.normed_residual else x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle1Input:
    """EAGLE-1 and 2: a projection of embedding and x, without a norm (Li et al., 2024)."""

    fc: Linear

    def __call__(self, embedded: Tensor, x: Tensor) -> LayerInput:
        projected = self.fc(torch.cat([embedded, x], -1))
        return LayerInput(projected, projected)


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPInput:
    """MTP modules: a projection of normalised x and normalised embedding."""

    config: ModelConfig
    hidden_norm: Tensor
    embedding_norm: Tensor
    fc: Linear
    input_norm: Tensor

    def __call__(self, embedded: Tensor, x: Tensor) -> LayerInput:
        normed = rms_norm(x, self.hidden_norm, self.config), rms_norm(embedded, self.embedding_norm, self.config)
        projected = self.fc(torch.cat(normed, -1))
        return LayerInput(rms_norm(projected, self.input_norm, self.config), projected)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleOutput:
    """Maps the last residual stream to logits over the target's tokens, and to feedback for the slots of children."""

    config: ModelConfig
    norm: Tensor | None
    """Before the output layer; None for EAGLE-1 and 2."""
    normed_feedback: bool
    layer: OutputLayer
    """The head's own, or the target's."""

    def __call__(self, hidden: Tensor) -> Output:
        """Return logits and feedback (as `HiddenStates.last`) for a residual stream (n, hidden)."""
        normed = hidden if self.norm is None else rms_norm(hidden, self.norm, self.config)
        return Output(self.layer(normed), HiddenStates((), normed if self.normed_feedback else hidden))


@dataclass(frozen=True, kw_only=True)
class EagleHead:
    """A head and the target that it was trained for; `load_eagle` reads it from a folder."""

    name: str
    target: Transformer
    config: ModelConfig
    """Of the head's layers; its vocabulary is the target's."""
    tokens: int
    """Tokens of the target's vocabulary that the head predicts."""
    embedding: Tensor
    """(V, hidden)."""
    first_embedding_read: bool = True
    """Whether the first slot reads an embedding; MTP modules were trained with zeros there."""
    fuse: StateFusion
    make_input: Callable[[Tensor, Tensor], LayerInput]
    """From embeddings and fused states, or feedback."""
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) before attention, for all layers but the first."""
    output: EagleOutput
    captures: ClassVar[bool] = True
    """Whether its passes can be captured as CUDA graphs."""

    @property
    def requested_states(self) -> RequestedStates:
        return self.fuse.requested_states

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
        """Return empty caches for `capacity` slots each, adjacent in memory."""
        store = KVStore.empty(self.config, capacity, sequences, rotations=self._rotations, dtype=self.dtype)
        return store.caches()

    def cache_bytes(self, capacity: int) -> int:
        return KVStore.sequence_bytes(self.config, capacity, self.dtype)

    def pass_bytes(self, tokens: int) -> int:
        """Return the peak activation memory of a pass over `tokens` slots, without logits."""
        return self.dtype.itemsize * tokens * (4 * self.config.hidden + 4 * self.config.intermediate)

    @torch.inference_mode()
    def read(self, states: HiddenStates, tokens: Tensor, cache: KVCache) -> None:
        """Commit slots to an empty cache, in chunks.

        Args:
            states: the target's, at n tokens.
            tokens: int64 (n,), the token after each.
            cache: of one sequence.
        """
        if len(tokens) == 0:
            return
        sizes = [len(chunk) for chunk in tokens.split(PREFILL_TOKENS)]
        state_chunks = states.map(lambda layer: layer[: len(tokens)]).split(sizes)
        for chunk, chunk_states in zip(tokens.split(sizes), state_chunks, strict=True):
            attention = SequenceAttention.of(SequenceInput.causal(cache, chunk))
            self.hidden(self.fuse(chunk_states), chunk, attention)
            cache.length += len(chunk)

    @torch.inference_mode()
    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,  # noqa: ARG002
        *,
        last_only: bool = False,
    ) -> Outputs:
        """Return logits and feedback of slots after the committed ones; the feedback is always `HiddenStates.last`."""
        sizes = [sequence.nodes.rows for sequence in inputs]
        hidden = self.hidden(
            concatenate([sequence.features for sequence in inputs if sequence.features is not None]),
            concatenate([sequence.tokens for sequence in inputs]),
            build_attention(inputs),
        )
        if last_only:
            return Outputs(self.output(last_rows(hidden, sizes)), [1] * len(sizes))
        return Outputs(self.output(hidden), sizes)

    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:  # noqa: ARG002
        """Return logits and feedback of all rows."""
        assert padded.features is not None  # hidden states or feedback
        return self.output(self.hidden(padded.features, padded.tokens, BatchedAttention.of_padded(padded)))

    def hidden(self, x: Tensor, tokens: Tensor, attention: PassAttention) -> Tensor:
        """Return the residual stream (n, hidden) after all layers, and write the slots' keys and values.

        Args:
            x: (n, hidden), fused hidden states of the target, or feedback.
            tokens: int64 (n,), the token after each.
            attention: of the slots.
        """
        embedded = F.embedding(tokens, self.embedding)
        if not self.first_embedding_read:
            is_first = attention.rotations[:, 0, 0].imag == 0  # no position but 0 is rotated by an exact 0
            embedded = embedded.masked_fill(is_first[:, None], 0)
        first, *others = self.layers
        hidden = first(*self.make_input(embedded, x), 0, attention)
        for number, (layer, norm) in enumerate(zip(others, self.input_norms, strict=True), start=1):
            hidden = layer(rms_norm(hidden, norm, self.config), hidden, number, attention)
        return hidden
