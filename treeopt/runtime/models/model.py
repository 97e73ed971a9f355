"""What decoding and measuring need of a model; the built-in transformer, transformers' adapter and GGUF files offer it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.nodes import PassNodes

PREFILL_TOKENS = 2048
"""Most tokens of a text that one pass of a prefill reads."""


class Wants(NamedTuple):
    """Hidden states that are wanted of a model; its passes compute no more than this."""

    boundaries: tuple[int, ...] = ()
    """Residual stream after so many layers, no norm; 0 is the embedding."""
    last: bool = False
    """What the logits are made of: after all layers and the final norm."""
    whole_text: bool = False
    """Whether a prefill returns those of every token, not only of the last."""

    @property
    def any(self) -> bool:
        """Whether anything is."""
        return self.last or bool(self.boundaries)


NOTHING = Wants()


class States(NamedTuple):
    """Hidden states of some tokens, those that were wanted."""

    boundaries: tuple[Tensor, ...]
    """Each (rows, hidden), in the order of `Wants.boundaries`; with a batch (batch, rows, hidden)."""
    last: Tensor | None
    """(rows, hidden); None where it was not wanted."""

    def row(self, row: int) -> "States":
        """Return those of one token of a text, each (1, hidden), in memory of their own."""
        return self.rows(slice(row, row + 1))

    def rows(self, rows: "slice | Tensor") -> "States":
        """Return those of some tokens of a text, in memory of their own."""
        return self.mapped(lambda states: states[rows].clone())

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "States":
        """Return what a function makes of them."""
        last = None if self.last is None else function(self.last)
        return States(tuple(function(each) for each in self.boundaries), last)

    def split(self, sizes: Sequence[int]) -> list["States"]:
        """Return those of the first tokens, of the next, and so on."""
        boundaries = [each.split(sizes) for each in self.boundaries]
        lasts = [None] * len(sizes) if self.last is None else self.last.split(sizes)
        return [States(tuple(each[part] for each in boundaries), last) for part, last in enumerate(lasts)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after the other; one alone as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def concatenate_states(parts: Sequence[States]) -> States:
    """Return the states of tokens that follow on one another."""
    if len(parts) == 1:
        return parts[0]
    boundaries = tuple(torch.cat(each) for each in zip(*(part.boundaries for part in parts), strict=True))
    lasts = [part.last for part in parts if part.last is not None]
    return States(boundaries, torch.cat(lasts) if lasts else None)


class Output(NamedTuple):
    """Logits and hidden states of some tokens."""

    logits: Tensor
    """tokens.shape + (V,)."""
    states: States | None = None
    """Rows as in `logits`; None where none are wanted."""

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Output":
        """Return what a function makes of each tensor."""
        return Output(function(self.logits), None if self.states is None else self.states.mapped(function))


class Outputs(list[Output]):
    """What one pass returns for each of its sequences.

    Args:
        whole: of all rows, one sequence after the other.
        sizes: rows of each sequence.
    """

    def __init__(self, whole: Output, sizes: Sequence[int]) -> None:
        self.whole = whole
        """Of all rows."""
        self.sizes = sizes
        """Rows of each sequence."""
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
    """Return the outputs of passes over different sequences as those of one pass."""
    if len(parts) == 1:
        return parts[0]
    states = [part.whole.states for part in parts if part.whole.states is not None]
    logits = torch.cat([part.logits for part in parts])
    whole = Output(logits, concatenate_states(states) if states else None)
    return Outputs(whole, [size for part in parts for size in part.sizes])


def check_boundaries(wants: Wants, layers: int, name: str) -> None:
    """Raise InvalidValueError where states of layers are wanted that a model of this name has not."""
    if any(not 0 <= boundary <= layers for boundary in wants.boundaries):
        raise InvalidValueError(
            f"{name}: expected boundaries from 0 to {layers}, its layers. Got {wants.boundaries}: take a drafter that "
            "was trained for this target."
        )


TRAINED_LENGTH = "trained length"
"""What limits the texts of a model whose sizes have no `limited_by`."""


class ModelSizes(Protocol):
    """What a decoder must know of a model before it runs it."""

    @property
    def vocabulary(self) -> int:
        """Logits of a token, V; a padded tail is counted."""

    @property
    def max_positions(self) -> int:
        """Longest text the model can be used for."""

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text."""


class SequenceCache:
    """The keys and values of one sequence: its committed tokens, and the nodes of the step after them.

        slot:   0 … length-1        length … length+n-1
        holds:  committed tokens    tree nodes of the step, in the order they were fed

    Args:
        capacity: tokens that fit in, tree nodes included.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        """Committed tokens."""
        self._finite = True

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tree nodes at the offsets `path` from the length, rising from 0, and drop the others.

        With 2 committed tokens A B and nodes r x y z after them, keep([0, 2]) leaves A B r y.
        """
        raise NotImplementedError

    def clear(self) -> None:
        """Forget every token, and where something was not finite, all entries."""
        self.length = 0
        if not self._finite:
            self._zero_nodes()
            self._finite = True

    def zero_nodes(self) -> None:
        """Set all slots after the committed tokens to 0, because a pass left something there that is not finite.

        Attention reads slots that a mask hides, and NaN there would be NaN in the result, whatever its weight. What is
        committed may not be finite either; it is set to 0 when the cache is cleared.
        """
        self._zero_nodes()
        self._finite = False

    def _zero_nodes(self) -> None:
        raise NotImplementedError


class Feed(NamedTuple):
    """The tokens of one sequence in a pass."""

    cache: Any
    """Of the sequence, made by the model; keys and values are written after its committed tokens, and its length does not
    change."""
    tokens: Tensor
    """int64 (n,)."""
    nodes: PassNodes
    """Depths of these tokens, and what they see."""
    inputs: Tensor | None = None
    """(n, hidden): what a head on a target reads beside the tokens."""


def feed_text(cache: SequenceCache, tokens: Tensor) -> Feed:
    """Return the tokens that follow a sequence's committed ones, int64 (n,), each of which sees those before it."""
    return Feed(cache, tokens, PassNodes.chain(len(tokens)))


class ForwardModel(Protocol):
    """Tokens in, logits out: a model, or a head on one. A cache belongs to the caller, and only to what made it."""

    @property
    def name(self) -> str:
        """What errors and warnings call it."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and cache."""

    @property
    def device(self) -> torch.device:
        """Where tokens go in and logits come out."""

    @property
    def config(self) -> ModelSizes:
        """Its sizes."""

    def new_caches(self, capacity: int, sequences: int) -> Sequence[Any]:
        """Return empty caches for `capacity` tokens each, tree nodes included, which one pass reads best."""

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for so many tokens; 0 where they are not known."""

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many tokens takes for a moment, logits left out; 0 if not known."""

    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:
        """Return logits and states of tokens that stand after the committed ones of their sequences.

        Sequences may differ in length, number of tokens and mask.

        Args:
            feeds: of each sequence.
            wants: hidden states.
            last_only: return the logits and states of each sequence's last token alone.
        """


class LanguageModel(ForwardModel, Protocol):
    """A model that reads a text from its beginning."""

    name: str

    @property
    def parameters(self) -> int:
        """How many numbers its weights are."""

    def prefill(self, tokens: Tensor, cache: Any, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,), to an empty cache, `PREFILL_TOKENS` at a time.

        Returns the states wanted of the last token, or of every token; None without text or where none are wanted.
        """


def prefill_in_chunks(
    tokens: Tensor,
    cache: SequenceCache,
    read: Callable[[Tensor], States | None],
    wants: Wants,
) -> States | None:
    """Commit a text by passes over its chunks, and return what `LanguageModel.prefill` does.

    Args:
        tokens: int64 (n,).
        cache: of the sequence.
        read: reads a chunk after the committed tokens and returns the states wanted of all its tokens.
        wants: hidden states.
    """
    found: list[States] = []
    for chunk in tokens.split(PREFILL_TOKENS):
        if len(chunk) == 0:
            return None
        states = read(chunk)
        cache.length += len(chunk)
        if states is not None:
            found.append(states if wants.whole_text else states.row(-1 % len(chunk)))
    if not found:
        return None
    return concatenate_states(found) if wants.whole_text else found[-1]


def length_limit(model: LanguageModel) -> str:
    """Return the longest text of a model in words: `llama takes 2048 tokens, its trained length`."""
    return f"{model.name} takes {sizes_limit(model.config)}"


def sizes_limit(sizes: ModelSizes) -> str:
    """Return the longest text of a model in words: `2048 tokens, its trained length`."""
    return f"{sizes.max_positions} tokens, its {getattr(sizes, 'limited_by', TRAINED_LENGTH)}"


def shortest_model(*models: LanguageModel | None) -> LanguageModel:
    """Return the model that takes the shortest texts; None stands for no model."""
    return min((model for model in models if model is not None), key=lambda model: model.config.max_positions)


def weight_bytes(model: LanguageModel) -> int:
    """Return the memory of a model's weights."""
    return model.parameters * model.dtype.itemsize


def kv_bytes(model: LanguageModel) -> int | None:
    """Return the memory of one cached token of one sequence; None if unknown."""
    return model.cache_bytes(PREFILL_TOKENS) // PREFILL_TOKENS or None


def trained_tokens(*models: LanguageModel | None) -> int:
    """Return the longest text that all of some models take; None stands for no model."""
    return shortest_model(*models).config.max_positions
