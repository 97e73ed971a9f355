"""What two models must share to speculate: tokens with the same ids, and logit columns for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.model import (
    NOTHING,
    LanguageModel,
    Output,
    RaggedModel,
    SizedModel,
    States,
    TextCache,
    TextRows,
    Wants,
)
from treeopt.runtime.models.transformer import Transformer


def check_same_tokens(target: Mapping[str, int], draft: Mapping[str, int]) -> None:
    """Raise InvalidValueError, naming the first difference, unless two vocabularies give every token the same id."""
    if target == draft:
        return
    differing = sorted(target.items() ^ draft.items(), key=lambda item: (item[1], item[0]))
    token, index = differing[0]
    raise InvalidValueError(
        f"draft: expected the target's vocabulary, token by token. {len(differing)} entries differ, the first is "
        f"{token!r} as token {index}: choose a draft model of the same family."
    )


def shared_columns(tokens: Mapping[str, int], *, target: int, draft: int) -> int:
    """Return how many logit columns a target and a draft share, where one has more of them than the other.

    Columns behind the last token are padding, with logits that mean nothing; models of one family may be padded
    differently.

    Raises InvalidValueError where the model with fewer columns has none for some token.
    """
    last = max(tokens.values(), default=-1)
    shared = min(target, draft)
    if target != draft and last >= shared:
        name, other = ("draft", "target") if draft < target else ("target", "draft")
        raise InvalidValueError(
            f"{name}: expected logits for every token, up to {last}. Got {shared}, and the {other} has "
            f"{max(target, draft)}: choose models of the same family."
        )
    return shared


@dataclass(frozen=True, slots=True)
class TrimmedSizes:
    """Sizes of a model of which fewer logits are shown."""

    vocabulary: int
    max_positions: int
    end_tokens: tuple[int, ...]


class TrimmedModel:
    """A model of which only the first logit columns are shown, so that what lies behind them is never sampled."""

    def __init__(self, model: LanguageModel, columns: int) -> None:
        self._model = model
        self.name = model.name
        self.dtype = model.dtype
        self.device = model.device
        self.parameters = model.parameters
        ends = tuple(token for token in model.config.end_tokens if token < columns)
        self.config = TrimmedSizes(columns, model.config.max_positions, ends)

    @property
    def whole(self) -> LanguageModel:
        """The model with all its columns."""
        return self._model

    def new_cache(self, capacity: int, batch_size: int = 1) -> TextCache:
        """Return the model's cache."""
        return self._model.new_cache(capacity, batch_size)

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of the model's cache; 0 where it does not say."""
        return self._model.cache_bytes(capacity, batch_size) if isinstance(self._model, SizedModel) else 0

    def pass_bytes(self, tokens: int) -> int:
        """Return the bytes of the model's pass; 0 where it does not say."""
        return self._model.pass_bytes(tokens) if isinstance(self._model, SizedModel) else 0

    def prefill(self, tokens: Tensor, cache: Any, wants: Wants = NOTHING) -> States | None:
        """Commit a text as the model does."""
        return self._model.prefill(tokens, cache, wants)

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
        """Return the first columns of the model's logits, tokens.shape + (columns,), and its states."""
        return self._shown(self._model.forward(tokens, positions, cache, mask, start=start, wants=wants))

    def _shown(self, output: Output) -> Output:
        return output._replace(logits=output.logits[..., : self.config.vocabulary])


class TrimmedRaggedModel(TrimmedModel):
    """The same of a model that reads several texts in one pass."""

    _model: RaggedModel

    def new_caches(self, capacity: int, texts: int) -> Sequence[TextCache]:
        """Return the model's caches."""
        return self._model.new_caches(capacity, texts)

    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        """Return the first columns of the model's logits, and its states, for each text."""
        return [self._shown(output) for output in self._model.forward_ragged(parts, wants)]


class TrimmedStaticModel(TrimmedRaggedModel):
    """The same of the built-in model, whose pass can also be captured as a CUDA graph."""

    _model: Transformer

    def forward_static(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        slots: Tensor,
        mask: Tensor,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return the first columns of the model's logits, tokens.shape + (columns,), and its states."""
        return self._shown(self._model.forward_static(tokens, positions, cache, slots, mask, wants))


def trimmed(model: LanguageModel, columns: int) -> LanguageModel:
    """Return the model with so many logit columns: itself where it has no more of them."""
    if model.config.vocabulary <= columns:
        return model
    if isinstance(model, Transformer):
        return TrimmedStaticModel(model, columns)
    return TrimmedRaggedModel(model, columns) if isinstance(model, RaggedModel) else TrimmedModel(model, columns)
