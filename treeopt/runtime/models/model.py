"""What decoding and measuring need of a model: the built-in transformer offers it, and so does transformers' adapter."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from treeopt.arrays import Bool, Integers
from treeopt.errors import InvalidValueError


class Wants(NamedTuple):
    """Hidden states that are wanted of a model; its passes compute no more than this."""

    boundaries: tuple[int, ...] = ()
    """Residual stream after so many layers, no norm; 0 is the embedding."""
    last: bool = False
    """What the logits are made of: after all layers and the final norm."""
    whole_text: bool = False
    """Whether a prefill tells those of every token, not only of the last."""

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


def states_together(parts: Sequence[States]) -> States:
    """Return the states of tokens that follow on one another, of a text."""
    if len(parts) == 1:
        return parts[0]
    boundaries = tuple(torch.cat(each) for each in zip(*(part.boundaries for part in parts), strict=True))
    lasts = [part.last for part in parts if part.last is not None]
    return States(boundaries, torch.cat(lasts) if lasts else None)


class Output(NamedTuple):
    """What a pass gives."""

    logits: Tensor
    """tokens.shape + (V,)."""
    states: States | None = None
    """Rows as in `logits`; None where none are wanted."""


class RaggedOutputs(list[Output]):
    """What one pass over several texts gives each of them.

    Args:
        whole: of all rows, one text after the other.
        sizes: rows of each text.
    """

    def __init__(self, whole: Output, sizes: list[int]) -> None:
        self.logits = whole.logits
        """Of all rows."""
        self.sizes = sizes
        """Rows of each text."""
        logits = whole.logits.split(sizes)
        if whole.states is None:
            super().__init__(map(Output, logits))
        else:
            super().__init__(map(Output, logits, whole.states.split(sizes)))


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


class TextCache(Protocol):
    """Keys and values of texts, tree nodes behind them; `treeopt.runtime.models.kv_cache` says how they lie."""

    lengths: list[int]
    """Committed tokens of each text."""
    length: int
    """Those of every text, where all have as many."""
    capacity: int
    """Tokens that fit in, tree nodes included."""

    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others."""

    def wipe(self) -> None:
        """Set what stands behind the committed tokens to 0, because a pass left something that is not finite."""

    def clear(self) -> None:
        """Forget every token."""


class TextRows(NamedTuple):
    """One text's tokens in a pass over several texts, which stand behind the committed ones."""

    tokens: Tensor
    """int64 (n,)."""
    depth: Integers
    """(n,): place of each behind the committed tokens, 0 the first; siblings share one."""
    cache: Any
    """Of this text alone; its length does not change."""
    visible: Bool | None = None
    """bool (n, start + n): which nodes, fed before or now, each may attend to; None where all."""
    start: int = 0
    """Nodes that were fed before in this step."""


class LanguageModel(Protocol):
    """Tokens in, logits out; a cache belongs to the caller, and only to the model that made it.

    Tokens are int64 (n,), or (batch, n) with a cache for as many texts of one length.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    """Where tokens go in and logits come out."""
    parameters: int

    @property
    def config(self) -> ModelSizes:
        """Its sizes."""

    def new_cache(self, capacity: int, batch_size: int = 1) -> TextCache:
        """Return an empty cache for `capacity` tokens of each text, tree nodes included."""

    def prefill(self, tokens: Tensor, cache: Any, wants: Wants = NOTHING) -> States | None:
        """Commit a text to an empty cache; return the states wanted, None without text or where none are."""

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        mask: Tensor | None,
        *,
        start: int = 0,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return logits and states of tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text; siblings share one.
            cache: keys and values are written to slots length + start …; its length does not change.
            mask: (n, length + start + n) to add to the attention scores, or None when each token sees every slot.
            start: tree nodes that were fed before in this step.
            wants: hidden states.
        """


@runtime_checkable
class SizedModel(LanguageModel, Protocol):
    """A model that tells how much memory it will take."""

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of what `new_cache` returns."""

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many tokens takes for a moment, logits left out."""


@runtime_checkable
class RaggedModel(LanguageModel, Protocol):
    """A model that reads several texts of unlike lengths in one pass."""

    def new_caches(self, capacity: int, texts: int) -> Sequence[TextCache]:
        """Return empty caches for `capacity` tokens of one text each, which one pass reads best."""

    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        """Return what `forward` does of each text, whose number of tokens, length and mask are its own.

        `RaggedOutputs` where the logits of all texts stand one after the other: what decoding asks of them next.
        """


@runtime_checkable
class StaticModel(LanguageModel, Protocol):
    """A model whose pass can also be captured as a CUDA graph."""

    def forward_static(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
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


def length_limit(model: LanguageModel) -> str:
    """Return the longest text of a model in words: `llama takes 2048 tokens, its trained length`."""
    return f"{model.name} takes {sizes_limit(model.config)}"


def sizes_limit(sizes: ModelSizes) -> str:
    """Return the longest text of a model in words: `2048 tokens, its trained length`."""
    return f"{sizes.max_positions} tokens, its {getattr(sizes, 'limited_by', TRAINED_LENGTH)}"


def reads_ragged(model: LanguageModel) -> TypeGuard[RaggedModel]:
    """Return whether a model reads texts of unlike lengths in one pass; `isinstance` would cost a share of a step."""
    return hasattr(model, "forward_ragged")


def caches_of_texts(model: LanguageModel, capacity: int, texts: int) -> Sequence[TextCache]:
    """Return empty caches of a model for `capacity` tokens of one text each."""
    if reads_ragged(model):
        return model.new_caches(capacity, texts)
    return [model.new_cache(capacity) for _ in range(texts)]


def shortest_model(*models: LanguageModel | None) -> LanguageModel:
    """Return the model that takes the shortest texts; None stands for no model."""
    return min((model for model in models if model is not None), key=lambda model: model.config.max_positions)


def trained_tokens(*models: LanguageModel | None) -> int:
    """Return the longest text that all of some models take; None stands for no model."""
    return shortest_model(*models).config.max_positions
