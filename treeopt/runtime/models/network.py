"""The base of the networks that treeopt runs itself: the transformer, and heads on it."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from treeopt.runtime.models.attention import BatchedAttention, PassAttention, build_attention
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.model import NO_STATES, Output, Outputs, RequestedStates, SequenceInput, concatenate
from treeopt.runtime.models.padded_batch import PaddedPass
from treeopt.runtime.models.rotary import Rotations


class Network:
    """Layers with rotary positions, whose keys and values are in a `KVStore`.

    A subclass defines `run`, or other passes by `forward` and `run_padded`.
    """

    config: ModelConfig
    """Of its layers."""
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
        """Return logits and states of all rows, padding included."""
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
