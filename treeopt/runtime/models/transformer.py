"""A transformer of the Llama family: prompts, single tokens and trees of any number of sequences through the same layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import OneSequence, Place, WholeText, place_of
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.grid import last_rows
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.layer import Layer, rms_norm
from treeopt.runtime.models.linear import Product, padded_rows
from treeopt.runtime.models.model import (
    NOTHING,
    Feed,
    Output,
    Outputs,
    States,
    Wants,
    check_boundaries,
    feed_text,
    joined,
    prefill_in_chunks,
)
from treeopt.runtime.models.rotary import Rotations


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model on one device, in one dtype."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) of the norm of what attention reads, of each layer."""
    norm: Tensor
    head: Product


class Transformer:
    """Tokens in, logits out; the cache belongs to the caller, so one model serves many sequences."""

    captures = True

    def __init__(self, config: ModelConfig, weights: Weights, *, name: str) -> None:
        self.config = config
        self.name = name
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.parameters = _count(weights, config)
        self._rotations = Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for `capacity` tokens each, tree nodes included; they lie side by side."""
        return KVStore.empty(self.config, capacity, sequences, rotations=self._rotations, dtype=self.dtype).caches()

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for so many tokens."""
        return KVStore.sequence_bytes(self.config, capacity, self.dtype)

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many tokens takes for a moment, logits left out.

        That is in the MLP: the residual and its norm, both inner products, and what is made of them.
        """
        return self.dtype.itemsize * tokens * (2 * self.config.hidden + 4 * self.config.intermediate)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: KVCache, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,), to an empty cache; see `LanguageModel`."""

        def read(chunk: Tensor) -> States | None:
            padded = self._padded(chunk, cache)
            place = OneSequence.of(feed_text(cache, padded))
            if not wants.any:
                self._write_all(padded, place)
                return None
            *boundaries, after_all = (each[: len(chunk)] for each in self._layers(padded, place, wants))
            return States(tuple(boundaries), self._norm(after_all) if wants.last else None)

        return prefill_in_chunks(tokens, cache, read, wants)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:
        """Return logits and states of tokens after the committed ones of their sequences; see `LanguageModel`."""
        place = place_of(feeds)
        tokens = joined([feed.tokens for feed in feeds])
        sizes = [feed.nodes.rows for feed in feeds]
        if last_only:
            return Outputs(self.run(tokens, place, wants, last_of=sizes), [1] * len(sizes))
        return Outputs(self.run(tokens, place, wants), sizes)

    @torch.inference_mode()
    def run(
        self,
        tokens: Tensor,
        place: Place,
        wants: Wants = NOTHING,
        *,
        inputs: Tensor | None = None,  # noqa: ARG002
        last_of: Sequence[int] | None = None,
    ) -> Output:
        """Return logits and states of tokens at a place.

        Args:
            tokens: int64 (rows,), one sequence after the other.
            place: where they stand.
            wants: hidden states.
            inputs: none; heads have them.
            last_of: rows of each sequence, where only the last of each is wanted; None for all rows.
        """
        found = self._layers(tokens, place, wants)
        if last_of is not None:
            found = [last_rows(each, last_of) for each in found]
        *boundaries, after_all = found
        last = self._norm(after_all)
        states = States(tuple(boundaries), last if wants.last else None) if wants.any else None
        return Output(self.weights.head(last), states)

    def read(self, tokens: Tensor) -> Tensor:
        """Return logits, tokens.shape + (vocabulary,), after every token of whole texts, which are kept in no cache.

        Gradients can be computed through it, of weights that ask for them.
        """
        (hidden,) = self._layers(tokens, WholeText(self._rotations.up_to(tokens.shape[-1])), NOTHING)
        return self.weights.head(self._norm(hidden)).view(*tokens.shape, -1)

    @torch.inference_mode()
    def states(self, tokens: Tensor, wants: Wants) -> States:
        """Return the states wanted, tokens.shape + (hidden,), of every token of whole texts, which are kept in no cache."""
        found = self._layers(tokens, WholeText(self._rotations.up_to(tokens.shape[-1])), wants)
        *boundaries, after_all = (each.view(*tokens.shape, -1) for each in found)
        return States(tuple(boundaries), self._norm(after_all) if wants.last else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of last hidden states (..., hidden)."""
        return self.weights.head(hidden)

    def _padded(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Return a text with its last token repeated after it, which none before it sees, to one of few lengths."""
        length = len(tokens)
        padded = padded_rows(length, self.parameters)
        if self.device.type != "cpu" or cache.length + padded > min(cache.capacity, len(cache.rotations)):
            return tokens
        return tokens[torch.arange(padded).clamp_(max=length - 1)]

    def _write_all(self, tokens: Tensor, place: OneSequence) -> None:
        """Write keys and values of all layers; nothing else of the last one is needed for that."""
        weights, before_last = self.weights, len(self.weights.layers) - 1
        (hidden,) = self._layers(tokens, place, NOTHING, before_last)
        normed = rms_norm(hidden, weights.input_norms[-1], self.config)
        _, key, value = weights.layers[-1].project(normed, place.rotations)
        place.write(before_last, key, value)

    def _layers(self, tokens: Tensor, place: Place, wants: Wants, count: int | None = None) -> list[Tensor]:
        """Return the residual stream (rows, hidden) at every boundary wanted, and last after so many layers, by default all."""
        check_boundaries(wants, self.config.layers, self.name)
        hidden = F.embedding(tokens.reshape(-1), self.weights.embedding)
        at = {0: hidden}
        window, sliding_layers = self.config.sliding_window, self.config.sliding_layers
        sliding = place if window is None else place.within(window)
        layers = zip(self.weights.layers, self.weights.input_norms, strict=True)
        for number, (layer, norm) in enumerate(islice(layers, count)):
            hidden = layer(
                rms_norm(hidden, norm, self.config), hidden, number, sliding if number in sliding_layers else place
            )
            if number + 1 in wants.boundaries:
                at[number + 1] = hidden
        return [*(at[boundary] for boundary in wants.boundaries), hidden]

    def _norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weights.norm, self.config)


def _count(weights: Weights, config: ModelConfig) -> int:
    """Return the number of distinct parameters."""
    products = [w for x in weights.layers for w in (x.query_key_value, x.attention_output, x.gate_up, x.down)]
    norms = [*weights.input_norms, *(x.mlp_norm for x in weights.layers)]
    head = [] if config.tied_head else [weights.head]
    head_norms = 2 * config.head_size * config.layers if config.head_norms else 0  # one for queries, one for keys
    return (
        head_norms
        + sum(w.numel() for w in [weights.embedding, weights.norm, *norms])
        + sum(w.parameters for w in [*products, *head])
    )
