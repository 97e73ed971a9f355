"""An EAGLE head, a small decoder over the target's hidden states and the following tokens, and its state at one sequence.

Slot j of a sequence reads the target's hidden state at token j and the embedding of token j + 1, at position j, and
predicts token j + 2.  The slot of a drafted token reads the head's own output at its parent, its feedback, in place of
the target's hidden state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.head_files import OutputLayer
from treeopt.runtime.models.attention import PassAttention, SequenceAttention
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import (
    PREFILL_TOKENS,
    HiddenStates,
    Output,
    RequestedStates,
    SequenceInput,
    concatenate_states,
)
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.padded_batch import last_rows
from treeopt.runtime.models.transformer import Layer, Network, Transformer, rms_norm

NO_TOKEN = -1
"""Read by the first slot of MTP modules, which were trained with zeros in place of an embedding there."""
FirstInput = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From embeddings and fused states, or feedback, to what the first attention reads, (n, inputs), and its residual, (n, hidden)."""


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

    def __call__(self, embedded: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms_norm(x, self.hidden_norm, self.config)
        attention_input = torch.cat([rms_norm(embedded, self.embedding_norm, self.config), normed], -1)
        return attention_input, normed if self.normed_residual else x


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle1Input:
    """EAGLE-1 and 2: a projection of embedding and x, without a norm (Li et al., 2024)."""

    fc: Linear

    def __call__(self, embedded: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        projected = self.fc(torch.cat([embedded, x], -1))
        return projected, projected


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPInput:
    """MTP modules: a projection of normalised x and normalised embedding."""

    config: ModelConfig
    hidden_norm: Tensor
    embedding_norm: Tensor
    fc: Linear
    input_norm: Tensor

    def __call__(self, embedded: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms_norm(x, self.hidden_norm, self.config), rms_norm(embedded, self.embedding_norm, self.config)
        projected = self.fc(torch.cat(normed, -1))
        return rms_norm(projected, self.input_norm, self.config), projected


@dataclass(frozen=True, kw_only=True)
class EagleHead(Network):
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
    """Whether the first slot reads the embedding of its token; MTP modules read `NO_TOKEN` there."""
    fuse: StateFusion
    make_input: FirstInput
    layers: tuple[Layer, ...]
    input_norms: tuple[Tensor, ...]
    """(hidden,) before attention, for all layers but the first."""
    norm: Tensor | None = None
    """(hidden,), before the output layer; None for EAGLE-1 and 2."""
    normed_feedback: bool = False
    output_layer: OutputLayer
    """The head's own, or the target's."""

    @property
    def requested_states(self) -> RequestedStates:
        return self.fuse.requested_states

    def new_sequences(self, capacity: int, nodes: int, sequences: int) -> list["EagleSequence"]:
        """Return the state of sequences of up to `capacity` tokens, each fed up to `nodes` nodes in a step."""
        return [EagleSequence(self, cache) for cache in new_caches(self, capacity + nodes, sequences)]

    @torch.inference_mode()
    def read(self, states: HiddenStates, tokens: Tensor, cache: KVCache) -> None:
        """Commit slots to an empty cache, in chunks, given the states at n tokens and the token after each, (n,)."""
        if len(tokens) == 0:
            return
        tokens = self.first_slot_tokens(tokens)
        sizes = [len(chunk) for chunk in tokens.split(PREFILL_TOKENS)]
        state_chunks = states.map(lambda layer: layer[: len(tokens)]).split(sizes)
        for chunk, chunk_states in zip(tokens.split(sizes), state_chunks, strict=True):
            attention = SequenceAttention.of(SequenceInput.causal(cache, chunk))
            self.hidden(self.fuse(chunk_states), chunk, attention)
            cache.length += len(chunk)

    def run(
        self,
        tokens: Tensor,
        attention: PassAttention,
        requested_states: RequestedStates,  # noqa: ARG002
        *,
        features: Tensor | None = None,
        last_of: Sequence[int] | None = None,
    ) -> Output:
        """Return logits and feedback of slots; the feedback is always `HiddenStates.last`."""
        assert features is not None  # hidden states or feedback
        hidden = self.hidden(features, tokens, attention)
        return self.output(hidden if last_of is None else last_rows(hidden, last_of))

    def hidden(self, x: Tensor, tokens: Tensor, attention: PassAttention) -> Tensor:
        """Return the residual stream (n, hidden) after all layers, and write the slots' keys and values.

        Args:
            x: (n, hidden), fused hidden states of the target, or feedback.
            tokens: int64 (n,), the token after each, from `first_slot_tokens` if the first slot is among them.
            attention: of the slots.
        """
        first, *others = self.layers
        hidden = first(*self.make_input(self._embed(tokens), x), 0, attention)
        for number, (layer, norm) in enumerate(zip(others, self.input_norms, strict=True), start=1):
            hidden = layer(rms_norm(hidden, norm, self.config), hidden, number, attention)
        return hidden

    def output(self, hidden: Tensor) -> Output:
        """Return logits, and feedback as `HiddenStates.last`, for a residual stream (n, hidden)."""
        normed = hidden if self.norm is None else rms_norm(hidden, self.norm, self.config)
        return Output(self.output_layer(normed), HiddenStates((), normed if self.normed_feedback else hidden))

    def first_slot_tokens(self, tokens: Tensor) -> Tensor:
        """Return what a sequence's slots from the first on read, given the token after each, int64 (n,)."""
        return tokens if self.first_embedding_read else F.pad(tokens[1:], (1, 0), value=NO_TOKEN)

    def to_device(self, numbers: Sequence[int]) -> Tensor:
        """Return tokens or indices on the head's device, int64 (n,)."""
        return torch.tensor(numbers, dtype=torch.int64).to(self.device, non_blocking=True)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (n, hidden) of tokens, int64 (n,); zeros for `NO_TOKEN`."""
        if self.first_embedding_read:
            return F.embedding(tokens, self.embedding)
        return F.embedding(tokens.clamp(min=0), self.embedding).masked_fill((tokens == NO_TOKEN)[:, None], 0)


class EagleSequence:
    """An EAGLE head at one sequence.

    Committed slots, one for every token but the first, always come from the target's hidden states: a step's drafted
    slots are dropped, and those of its accepted tokens are fed again (Li et al., 2025).  The root's slot is at
    `cache.length`, and the drafted nodes follow it.  The parents of the nodes of a pass are among those of the pass before.
    """

    has_backlog = False
    feed_indices: Sequence[int] = ()
    """Not read: the slots of all accepted nodes are fed again."""

    def __init__(self, head: EagleHead, cache: KVCache) -> None:
        self.head = head
        self.cache = cache
        self.root = -1
        self._feedback = torch.empty(0)
        """(n, hidden), of the nodes that the last pass fed."""
        self._pending: list[tuple[HiddenStates, list[int]]] = []
        """Hidden states and following tokens of the slots that are not committed yet, the root's last."""
        self._root_fed = False

    @property
    def ready(self) -> bool:
        return bool(self._pending)

    @torch.inference_mode()
    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self.cache.clear()
        self.root = tokens[-1]
        self._pending, self._root_fed = [], False
        if states is not None:
            self.head.read(states, self.head.to_device(tokens[1:-1]), self.cache)
            self._pending = [(states.row(len(tokens) - 2), [self.root])]

    @staticmethod
    def feed_roots(sequences: Sequence[Any]) -> list[SequenceInput]:
        head = sequences[0].head
        states = concatenate_states([states for sequence in sequences for states, _ in sequence._pending])
        counts = [sum(len(following) for _, following in sequence._pending) for sequence in sequences]
        tokens = head.to_device(
            [token for sequence in sequences for _, following in sequence._pending for token in following]
        )
        return [
            SequenceInput(
                sequence.cache,
                head.first_slot_tokens(following) if sequence.cache.length == 0 else following,
                PassNodes.chain(count),
                x,
            )
            for sequence, count, following, x in zip(
                sequences, counts, tokens.split(counts), head.fuse(states).split(counts), strict=True
            )
        ]

    def commit_fed(self, output: Output) -> None:
        self.store(output)
        self.commit_pending()

    def commit_pending(self) -> None:
        """Commit the slots of `feed_roots` but the root's, whose place the next pass may overwrite."""
        states, following = self._pending[-1]
        self.cache.length += sum(len(tokens) for _, tokens in self._pending) - 1
        self._pending = [(states.map(lambda layer: layer[-1:]), following[-1:])]
        self._root_fed = True

    def feed(self, tokens: Tensor, nodes: PassNodes) -> SequenceInput:
        """Return drafted nodes, each with the feedback of its parent."""
        parents = nodes.parents_on(self.head.device, first=nodes.start - len(self._feedback))
        return SequenceInput(self.cache, tokens, nodes, self._feedback.index_select(0, parents))

    def store(self, output: Output) -> None:
        """Keep the feedback of the fed nodes, which their children read."""
        assert output.states is not None  # heads return feedback
        assert output.states.last is not None
        self._feedback = output.states.last

    def accept(self, step: Step) -> None:
        """Move to the new root: the slots of the accepted tokens are pending, now with the target's hidden states."""
        assert step.states is not None  # heads request them
        if self._root_fed:
            self.cache.length += 1  # the root's slot came from the target's states already
            self._pending, self._root_fed = [], False
        self._pending.append((step.states.rows(self.head.to_device(step.path)), step.tokens))
        self.root = step.tokens[-1]
        if step.truncated:  # the cache is not finite after the committed slots
            self.cache.zero_nodes()
