"""A draft model that proposes only tokens that its target has too."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.attention import Place
from treeopt.runtime.models.model import (
    NOTHING,
    TRAINED_LENGTH,
    Feed,
    LanguageModel,
    Output,
    Outputs,
    States,
    Wants,
)
from treeopt.runtime.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class LimitedSizes:
    """Sizes of a draft model with as many logits as its target."""

    vocabulary: int
    max_positions: int
    end_tokens: tuple[int, ...]
    limited_by: str
    """What limits a text."""


class LimitedDraft:
    """A draft model that proposes shared ids only: all other logits are -inf.

    It has as many logits as the target.  An id that the draft model has no embedding for is read as its end token.

    Args:
        model: the draft model.
        ids: shared ids, in rising order.
        vocabulary: logits of the target.
    """

    def __init__(self, model: LanguageModel, ids: Sequence[int], vocabulary: int) -> None:
        self._model = model
        self.name = model.name
        self.dtype = model.dtype
        self.device = model.device
        self.parameters = model.parameters
        self.captures = isinstance(model, Transformer)
        self.ids = tuple(ids)
        """Ids that it may propose."""
        allowed = set(ids)
        sizes = model.config
        ends = tuple(token for token in sizes.end_tokens if token in allowed)
        limited_by = getattr(sizes, "limited_by", TRAINED_LENGTH)
        self.config = LimitedSizes(vocabulary, sizes.max_positions, ends, limited_by)
        self._embeddings = sizes.vocabulary
        self._substitute = next((token for token in sizes.end_tokens if token < sizes.vocabulary), 0)
        self._width = ids[-1] + 1
        hidden = [token for token in range(self._width) if token not in allowed]
        self._hidden = torch.tensor(hidden, dtype=torch.int64, device=model.device) if hidden else None

    @property
    def whole(self) -> LanguageModel:
        """The draft model with its own logits."""
        return self._model

    def readable(self, tokens: Tensor) -> Tensor:
        """Return tokens, those without an embedding replaced."""
        if self._embeddings >= self.config.vocabulary:
            return tokens
        return torch.where(tokens < self._embeddings, tokens, self._substitute)

    def limited(self, logits: Tensor) -> Tensor:
        """Return logits (..., vocabulary of the target), of the draft model's own logits."""
        padding = (0, self.config.vocabulary - self._width)
        logits = F.pad(logits[..., : self._width], padding, value=float("-inf"))  # a copy, also without padding
        return logits if self._hidden is None else logits.index_fill_(-1, self._hidden, float("-inf"))

    def new_caches(self, capacity: int, sequences: int) -> Sequence[Any]:
        return self._model.new_caches(capacity, sequences)

    def cache_bytes(self, capacity: int) -> int:
        return self._model.cache_bytes(capacity)

    def pass_bytes(self, tokens: int) -> int:
        return self._model.pass_bytes(tokens)

    def prefill(self, tokens: Tensor, cache: Any, wants: Wants = NOTHING) -> States | None:
        return self._model.prefill(self.readable(tokens), cache, wants)

    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:
        readable = [feed._replace(tokens=self.readable(feed.tokens)) for feed in feeds]
        outputs = self._model.forward(readable, wants, last_only=last_only)
        return Outputs(outputs.whole._replace(logits=self.limited(outputs.logits)), outputs.sizes)

    def run(self, tokens: Tensor, place: Place, wants: Wants = NOTHING, *, inputs: Tensor | None = None) -> Output:
        """Return logits and states of tokens at a place of a built-in model."""
        assert isinstance(self._model, Transformer)  # else nothing is captured
        output = self._model.run(self.readable(tokens), place, wants, inputs=inputs)
        return output._replace(logits=self.limited(output.logits))


def limit_draft(draft: LanguageModel, ids: Collection[int], vocabulary: int) -> LanguageModel:
    """Return a draft model that proposes shared ids only; the model itself if it has no other logits.

    Args:
        draft: the draft model.
        ids: shared ids; those without logits in both models are left out.
        vocabulary: logits of the target.

    Raises InvalidValueError if no id is left.
    """
    columns = min(vocabulary, draft.config.vocabulary)
    left = sorted(index for index in ids if index < columns)
    if not left:
        raise InvalidValueError(
            f"draft: expected logits of tokens that the target shares. Got {columns} logits: choose a draft of the same "
            "family.",
            field="draft",
        )
    if len(left) == vocabulary == draft.config.vocabulary:
        return draft
    return LimitedDraft(draft, left, vocabulary)
