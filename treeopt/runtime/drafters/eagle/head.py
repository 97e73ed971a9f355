"""An EAGLE head: what it reads of the target, its layers, and what it says and feeds back to itself.

Slot j of a text holds the target's state of token j and the embedding of token j + 1, at position j, and tells what
follows token j + 1.  A drafted token's slot takes the head's own output at its parent in place of the target's state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.drafters.draft_vocabulary import spread_logits
from treeopt.runtime.models.attention import OneSequence, Place, place_of
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.grid import last_rows
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.layer import Layer, rms_norm
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import (
    NOTHING,
    PREFILL_TOKENS,
    Feed,
    Output,
    Outputs,
    States,
    Wants,
    feed_text,
    joined,
)
from treeopt.runtime.models.rotary import Rotations
from treeopt.runtime.models.transformer import Transformer


class Mixed(NamedTuple):
    """What the first layer is given."""

    attention_input: Tensor
    """(n, inputs)."""
    residual: Tensor
    """(n, hidden)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """How the target's states of a token become what a slot holds: EAGLE-3's `fc`, or the last state as it is."""

    wants: Wants
    config: ModelConfig
    each_norm: tuple[Tensor, ...] = ()
    """(H,) of each boundary's own norm, where there are any."""
    norm: Tensor | None = None
    """(boundaries * H,) of a norm of all together."""
    fc: Linear | None = None

    def __call__(self, states: States) -> Tensor:
        """Return x (n, hidden) of the states of n tokens."""
        if self.fc is None:
            assert states.last is not None  # it was wanted
            return states.last
        found: Sequence[Tensor] = states.boundaries
        if self.each_norm:
            found = [rms_norm(x, w, self.config) for x, w in zip(found, self.each_norm, strict=True)]
        x = torch.cat(list(found), -1)
        return self.fc(x if self.norm is None else rms_norm(x, self.norm, self.config))


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """EAGLE-3: attention reads the normed embedding and the normed x side by side (Li et al., 2025, section 3)."""

    config: ModelConfig
    embedding_norm: Tensor
    hidden_norm: Tensor
    normed_residual: bool
    """Whether attention's output is added to the normed x and not to x itself."""

    def __call__(self, embedded: Tensor, x: Tensor) -> Mixed:
        """Return what the first layer is given."""
        normed = rms_norm(x, self.hidden_norm, self.config)
        together = torch.cat([rms_norm(embedded, self.embedding_norm, self.config), normed], -1)
        return Mixed(together, normed if self.normed_residual else x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """EAGLE-1 and 2: embedding and x make one input, which no norm is put before (Li et al., 2024)."""

    fc: Linear

    def __call__(self, embedded: Tensor, x: Tensor) -> Mixed:
        """Return what the first layer is given."""
        joined = self.fc(torch.cat([embedded, x], -1))
        return Mixed(joined, joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLayer:
    """How the last residual stream becomes logits over the target's tokens, and feedback.

    Feedback is what the slots of drafted children take in place of the target's states.
    """

    config: ModelConfig
    norm: Tensor | None
    """Before the output layer; None for EAGLE-1 and 2."""
    normed_feedback: bool
    head: Callable[[Tensor], Tensor]
    """The output layer: the head's own, or the target's."""
    target_ids: Tensor | None
    """int64 (Vd,): the target's token that each of the head's stands for; None where all do for themselves."""

    def __call__(self, hidden: Tensor) -> Output:
        """Return the logits of slots with a residual stream (n, hidden), and their feedback as the last states."""
        normed = hidden if self.norm is None else rms_norm(hidden, self.norm, self.config)
        logits = self.head(normed)
        if self.target_ids is not None:
            logits = spread_logits(logits, self.target_ids, self.config.vocabulary)
        return Output(logits, States((), normed if self.normed_feedback else hidden))


@dataclass(frozen=True, kw_only=True)
class EagleHead:
    """A head and the target that it was trained for; `load_eagle` makes it out of a folder."""

    name: str
    target: Transformer
    config: ModelConfig
    """Of the head's layers; its vocabulary is the target's."""
    tokens: int
    """Of the target's vocabulary, how many the head knows."""
    embedding: Tensor
    """(V, hidden)."""
    first_embedding_read: bool = True
    """Whether the first slot reads an embedding; MTP modules were trained with zeros there."""
    fuse: Taps
    mix: Callable[[Tensor, Tensor], Mixed]
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) of what attention reads, of all layers but the first."""
    output: OutputLayer
    parameters: int

    @property
    def wants(self) -> Wants:
        """Hidden states of the target that it reads."""
        return self.fuse.wants

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The target's."""
        return self.embedding.dtype

    @property
    def captures(self) -> bool:
        """Whether its passes can be captured as CUDA graphs; the first slot of an MTP module is computed differently."""
        return self.first_embedding_read

    @cached_property
    def _rotations(self) -> Rotations:
        config = self.config
        return Rotations(config.head_size, config.rope_base, config.rope_scaling, self.device)

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        """Return empty caches for so many slots each, which lie side by side."""
        store = KVStore.empty(self.config, capacity, sequences, rotations=self._rotations, dtype=self.dtype)
        return store.caches()

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for so many slots."""
        return KVStore.sequence_bytes(self.config, capacity, self.dtype)

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many slots takes for a moment, logits left out."""
        return self.dtype.itemsize * tokens * (4 * self.config.hidden + 4 * self.config.intermediate)

    def zero_states(self, tokens: int) -> States:
        """Return states of the target for so many tokens that are all zero, which take as long to read as real ones."""
        zeros = torch.zeros((tokens, self.target.config.hidden), dtype=self.dtype, device=self.device)
        return States((zeros,) * len(self.wants.boundaries), zeros if self.wants.last else None)

    @torch.inference_mode()
    def read(self, states: States, tokens: Tensor, cache: KVCache) -> None:
        """Commit true slots to an empty cache, some at a time.

        Args:
            states: the target's, of n tokens.
            tokens: int64 (n,), the token after each.
            cache: of one sequence.
        """
        if len(tokens) == 0:
            return
        sizes = [len(chunk) for chunk in tokens.split(PREFILL_TOKENS)]
        true_states = states.mapped(lambda each: each[: len(tokens)]).split(sizes)
        for chunk, chunk_states in zip(tokens.split(sizes), true_states, strict=True):
            place = OneSequence.of(feed_text(cache, chunk))
            self.hidden(self.fuse(chunk_states), chunk, place, begins=[0] if cache.length == 0 else [])
            cache.length += len(chunk)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:  # noqa: ARG002
        """Return logits and feedback of slots after the committed ones; the feedback is `States.last`, wanted or not."""
        sizes = [feed.nodes.rows for feed in feeds]
        firsts = zip(feeds, accumulate(sizes, initial=0), strict=False)
        begins = [row for feed, row in firsts if feed.cache.length + feed.nodes.start == 0]
        hidden = self.hidden(
            joined([feed.inputs for feed in feeds if feed.inputs is not None]),
            joined([feed.tokens for feed in feeds]),
            place_of(feeds),
            begins=begins,
        )
        if last_only:
            return Outputs(self.output(last_rows(hidden, sizes)), [1] * len(sizes))
        return Outputs(self.output(hidden), sizes)

    def run(self, tokens: Tensor, place: Place, wants: Wants = NOTHING, *, inputs: Tensor | None = None) -> Output:  # noqa: ARG002
        """Return logits and feedback of slots at a place, none of which is the first of a text."""
        assert inputs is not None  # slots hold the target's states, or feedback
        return self.output(self.hidden(inputs, tokens, place))

    def hidden(self, x: Tensor, tokens: Tensor, place: Place, *, begins: Sequence[int] = ()) -> Tensor:
        """Return the residual stream (n, hidden) after all layers, of slots whose keys and values are written.

        Args:
            x: (n, hidden), fused states of the target, or feedback.
            tokens: int64 (n,), the token behind each.
            place: of the slots.
            begins: which of them are the first of their texts.
        """
        embedded = F.embedding(tokens, self.embedding)
        if begins and not self.first_embedding_read:
            embedded[list(begins)] = 0
        mixed = self.mix(embedded, x)
        first, *others = self.layers
        hidden = first(*mixed, 0, place)
        for number, (layer, norm) in enumerate(zip(others, self.input_norms, strict=True), start=1):
            hidden = layer(rms_norm(hidden, norm, self.config), hidden, number, place)
        return hidden
