"""The interface of models to decoding and measuring: inputs and outputs of a pass, caches, prefill."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.nodes import PassNodes

PREFILL_TOKENS = 2048
"""Prompt tokens per prefill pass, at most."""
TRAINED_LENGTH = "trained length"


class RequestedStates(NamedTuple):
    """Hidden states that a pass returns; no others are computed."""

    layer_ids: tuple[int, ...] = ()
    """Residual stream after this many layers, without norm; 0 is the embedding."""
    last: bool = False
    """Input of the output head: after all layers and the final norm."""
    all_tokens: bool = False
    """Whether a prefill returns the states of all tokens instead of the last one's."""

    @property
    def any(self) -> bool:
        return self.last or bool(self.layer_ids)


NO_STATES = RequestedStates()


class HiddenStates(NamedTuple):
    """The requested hidden states of some tokens."""

    layers: tuple[Tensor, ...]
    """(rows, hidden) or (batch, rows, hidden) per layer, in the order of `RequestedStates.layer_ids`."""
    last: Tensor | None
    """(rows, hidden); None if not requested."""

    def row(self, row: int) -> "HiddenStates":
        """Return a copy of one token's states, each (1, hidden)."""
        return self.map(lambda states: states[row : row + 1].clone())

    def rows(self, rows: Tensor) -> "HiddenStates":
        """Return a copy of the states of some tokens, int64 (n,)."""
        return self.map(lambda states: states.index_select(0, rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "HiddenStates":
        last = None if self.last is None else function(self.last)
        return HiddenStates(tuple(function(layer) for layer in self.layers), last)

    def split(self, sizes: Sequence[int]) -> list["HiddenStates"]:
        layers = [layer.split(sizes) for layer in self.layers]
        lasts = [None] * len(sizes) if self.last is None else self.last.split(sizes)
        return [HiddenStates(tuple(layer[part] for layer in layers), last) for part, last in enumerate(lasts)]


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first dimension; a single tensor is returned without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def concatenate_states(parts: Sequence[HiddenStates]) -> HiddenStates:
    layers = tuple(concatenate(tensors) for tensors in zip(*(part.layers for part in parts), strict=True))
    lasts = [part.last for part in parts if part.last is not None]
    return HiddenStates(layers, concatenate(lasts) if lasts else None)


class Output(NamedTuple):
    """Logits and hidden states of some tokens."""

    logits: Tensor
    """tokens.shape + (V,)."""
    states: HiddenStates | None = None
    """Rows as in `logits`; None if none were requested."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Output":
        return Output(function(self.logits), None if self.states is None else self.states.map(function))


class Outputs(list[Output]):
    """The outputs of one pass, one per sequence: parts of `whole`, which has `sizes` rows of each."""

    def __init__(self, whole: Output, sizes: Sequence[int]) -> None:
        self.whole = whole
        self.sizes = sizes
        if len(sizes) == 1:
            super().__init__([whole])
            return
        logits = whole.logits.split(list(sizes))
        if whole.states is None:
            super().__init__(map(Output, logits))
        else:
            super().__init__(map(Output, logits, whole.states.split(list(sizes))))

    @property
    def logits(self) -> Tensor:
        """(all rows, V)."""
        return self.whole.logits


def concatenate_outputs(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of passes over different sequences as if from one pass."""
    if len(parts) == 1:
        return parts[0]
    states = [part.whole.states for part in parts if part.whole.states is not None]
    logits = torch.cat([part.logits for part in parts])
    whole = Output(logits, concatenate_states(states) if states else None)
    return Outputs(whole, [size for part in parts for size in part.sizes])


def check_layer_ids(requested_states: RequestedStates, layers: int, name: str) -> None:
    """Raise InvalidValueError if the states of a layer are requested that the model does not have."""
    if any(not 0 <= layer_id <= layers for layer_id in requested_states.layer_ids):
        raise InvalidValueError(
            f"{name}: expected hidden-state layer ids from 0 to {layers}, its layers. Got {requested_states.layer_ids}: "
            "take a drafter that was trained for this target."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a model, as far as a decoder needs them."""

    vocabulary: int
    """Logits per token, V, padding included."""
    max_positions: int
    """Maximum sequence length in tokens, which no sequence may exceed."""
    limited_by: str = TRAINED_LENGTH
    end_tokens: tuple[int, ...]
    """Tokens that end a sequence; may be empty."""
    sliding_window: int | None = None
    """Sliding window in tokens, the token itself included; None without sliding attention."""


class SequenceCache:
    """The keys and values of one sequence: its committed tokens, and the nodes of the step after them.

        slot:   0 … length-1        length … length+n-1
        holds:  committed tokens    tree nodes of the step, in the order they were fed

    The capacity includes the nodes.
    """

    store: Any
    """Memory that the caches of several sequences share; one pass takes sequences of one store."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        """Committed tokens."""
        self._finite = True

    def commit(self, path: Sequence[int]) -> None:
        """Commit the tree nodes at the offsets `path` from the length, ascending from 0, and drop the others.

        With 2 committed tokens A B and nodes r x y z after them, commit([0, 2]) leaves A B r y.
        """
        raise NotImplementedError

    def clear(self) -> None:
        """Drop all tokens; after a non-finite pass, also reset all slots to 0."""
        self.length = 0
        if not self._finite:
            self._zero_nodes()
            self._finite = True

    def zero_nodes(self) -> None:
        """Reset all slots after the committed tokens to 0, because a pass wrote non-finite values there.

        Attention reads masked slots too, and NaN times a weight of 0 is NaN.  Committed slots may be non-finite as
        well; `clear` resets them.
        """
        self._zero_nodes()
        self._finite = False

    def _zero_nodes(self) -> None:
        raise NotImplementedError


class SequenceInput(NamedTuple):
    """The new tokens of one sequence in a pass."""

    cache: Any
    """Of the sequence, made by the model.  The pass writes keys and values after the committed tokens; the length stays."""
    tokens: Tensor
    """int64 (n,)."""
    nodes: PassNodes
    """Depths of the tokens, and which nodes each attends to."""
    features: Tensor | None = None
    """(m, width), m <= n: what a drafter's head reads along with the first m tokens."""

    @property
    def slots(self) -> range:
        """Where keys and values are written; the last token attends to slots up to its own."""
        first: int = self.cache.length + self.nodes.start
        return range(first, first + self.nodes.rows)

    @classmethod
    def causal(cls, cache: SequenceCache, tokens: Tensor) -> "SequenceInput":
        """Return tokens, int64 (n,), that follow the committed ones; each attends to itself and all before it."""
        return cls(cache, tokens, PassNodes.chain(len(tokens)))


class ForwardModel(Protocol):
    """A language model, or a drafter's head.  The caller owns the caches, which serve only the model that made them."""

    @property
    def name(self) -> str:
        """Name in errors and warnings."""

    @property
    def device(self) -> torch.device:
        """Of the input tokens and the logits."""

    def new_caches(self, capacity: int, sequences: int) -> Sequence[Any]:
        """Return empty caches for `capacity` tokens each, tree nodes included, laid out for batched passes."""

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for `capacity` tokens; 0 if unknown."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and cache."""

    @property
    def config(self) -> ModelSizes:
        """Its sizes."""

    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,
        *,
        last_only: bool = False,
    ) -> Outputs:
        """Return logits and states of tokens after the committed ones; with `last_only`, of each sequence's last token.

        Sequences may differ in length, number of tokens and mask.
        """


class LanguageModel(ForwardModel, Protocol):
    """A model that prefills prompts."""

    name: str

    @property
    def parameters(self) -> int:
        """Number of weights."""

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights, as they are stored."""

    def pass_bytes(self, tokens: int) -> int:
        """Return the peak bytes of activations in a pass over `tokens` tokens, without logits; 0 if unknown."""

    def prefill(self, tokens: Tensor, cache: Any, requested_states: RequestedStates = NO_STATES) -> HiddenStates | None:
        """Commit a prompt, int64 (n,), to an empty cache, `PREFILL_TOKENS` at a time.

        Returns the requested states of the last token or of all tokens; None if n is 0 or nothing was requested.
        """


def prefill_in_chunks(
    tokens: Tensor,
    cache: SequenceCache,
    run_chunk: Callable[[Tensor], HiddenStates | None],
    requested_states: RequestedStates,
) -> HiddenStates | None:
    """Commit a prompt, int64 (n,), chunk by chunk; return what `LanguageModel.prefill` does.

    `run_chunk` runs a pass over a chunk after the committed tokens and returns the states of all its tokens.
    """
    parts: list[HiddenStates] = []
    for chunk in tokens.split(PREFILL_TOKENS):
        if len(chunk) == 0:
            return None
        states = run_chunk(chunk)
        cache.length += len(chunk)
        if states is not None:
            parts.append(states if requested_states.all_tokens else states.row(-1 % len(chunk)))
    if not parts:
        return None
    return concatenate_states(parts) if requested_states.all_tokens else parts[-1]


def check_token_ids(model: LanguageModel, tokens: Sequence[int], field: str) -> None:
    """Raise InvalidValueError for a token that a model has no embedding of, such as one of another model's tokenizer."""
    vocabulary = model.config.vocabulary
    unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise InvalidValueError(
            f"{field}: expected tokens from 0 to {vocabulary - 1}, which {model.name} has. Got {unknown}: use its own tokenizer.",
            field=field,
        )


def describe_length_limit(model: LanguageModel) -> str:
    """Return a model's maximum sequence length in words: `llama takes 2048 tokens, its trained length`."""
    return f"{model.name} takes {describe_max_positions(model.config)}"


def describe_max_positions(sizes: ModelSizes) -> str:
    """Return the maximum sequence length in words: `2048 tokens, its trained length`."""
    return f"{sizes.max_positions} tokens, its {sizes.limited_by}"


def shortest_model(*models: LanguageModel | None) -> LanguageModel:
    """Return the model with the smallest maximum sequence length; None stands for no model."""
    return min((model for model in models if model is not None), key=lambda model: model.config.max_positions)


def max_sequence_tokens(*models: LanguageModel | None) -> int:
    """Return the maximum sequence length that all models support; None stands for no model."""
    return shortest_model(*models).config.max_positions


def kv_bytes(model: LanguageModel) -> int | None:
    """Return the KV-cache bytes per token of one sequence; None if unknown."""
    return model.cache_bytes(PREFILL_TOKENS) // PREFILL_TOKENS or None
