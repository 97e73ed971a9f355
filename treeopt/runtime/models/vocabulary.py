"""Which tokens a target and a draft model share, and a draft model that proposes no others."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.model import (
    NOTHING,
    LanguageModel,
    Output,
    RaggedModel,
    RaggedOutputs,
    SizedModel,
    States,
    TextCache,
    TextRows,
    Wants,
)
from treeopt.runtime.models.transformer import Transformer

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer

LEAST_SHARED = 0.5
"""Share of the target's tokens below which a draft's tokenizer is another one."""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """How two tokenizers compare, in numbers of ids."""

    ids: tuple[int, ...]
    """Ids that stand for the same token in both, in rising order."""
    differing: int
    """Ids of special or added tokens that differ."""
    target_only: int
    draft_only: int

    @property
    def identical(self) -> bool:
        """Whether both tokenizers have the same tokens."""
        return not (self.differing or self.target_only or self.draft_only)

    def note(self, target_logits: int, draft_logits: int) -> str:
        """Return one line on what was compared."""
        return (
            f"Vocabularies: {len(self.ids)} shared ids, {self.differing} that differ, {self.target_only} in the target "
            f"only, {self.draft_only} in the draft only; {target_logits} logits in the target, {draft_logits} in the "
            "draft. Only shared ids are drafted."
        )


def compare_tokens(target: "Tokenizer", draft: "Tokenizer") -> SharedTokens:
    """Return which ids two tokenizers share.

    Special and added tokens may differ, and either tokenizer may have more tokens.

    Raises InvalidValueError if an ordinary token differs, or if the target shares fewer than half of its tokens.
    """
    tokens, draft_tokens = ({index: token for token, index in each.vocabulary.items()} for each in (target, draft))
    shared = {index for _, index in target.vocabulary.items() & draft.vocabulary.items()}
    differing = (tokens.keys() & draft_tokens.keys()) - shared
    ordinary = sorted(differing - target.added_ids - draft.added_ids) if differing else []
    if ordinary:
        first = ordinary[0]
        raise InvalidValueError(
            f"draft: expected the target's tokenizer. {len(ordinary)} ids stand for other tokens, the first is {first}: "
            f"{tokens[first]!r} in the target, {draft_tokens[first]!r} in the draft. Choose a draft of the same family.",
            field="draft",
        )
    if len(shared) < LEAST_SHARED * len(tokens):
        raise InvalidValueError(
            f"draft: expected the target's tokenizer. {len(shared)} of the target's {len(tokens)} tokens have the same id "
            "in the draft: choose a draft of the same family.",
            field="draft",
        )
    return SharedTokens(
        ids=tuple(sorted(shared)),
        differing=len(differing),
        target_only=len(tokens.keys() - draft_tokens.keys()),
        draft_only=len(draft_tokens.keys() - tokens.keys()),
    )


@dataclass(frozen=True, slots=True)
class LimitedSizes:
    """Sizes of a draft model with as many logits as its target."""

    vocabulary: int
    max_positions: int
    end_tokens: tuple[int, ...]
    sliding_window: int | None


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
        self.ids = tuple(ids)
        """Ids that it may propose."""
        allowed = set(ids)
        sizes = model.config
        ends = tuple(token for token in sizes.end_tokens if token in allowed)
        window = getattr(sizes, "sliding_window", None)
        self.config = LimitedSizes(vocabulary, sizes.max_positions, ends, window)
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

    def new_cache(self, capacity: int, batch_size: int = 1) -> TextCache:
        return self._model.new_cache(capacity, batch_size)

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of the model's cache; 0 if it cannot compute them."""
        return self._model.cache_bytes(capacity, batch_size) if isinstance(self._model, SizedModel) else 0

    def pass_bytes(self, tokens: int) -> int:
        """Return the bytes of the model's pass; 0 if it cannot compute them."""
        return self._model.pass_bytes(tokens) if isinstance(self._model, SizedModel) else 0

    def prefill(self, tokens: Tensor, cache: Any, wants: Wants = NOTHING) -> States | None:
        return self._model.prefill(self.readable(tokens), cache, wants)

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
        output = self._model.forward(self.readable(tokens), positions, cache, mask, start=start, wants=wants)
        return self._shown(output)

    def _shown(self, output: Output) -> Output:
        return output._replace(logits=self.limited(output.logits))


class LimitedRaggedDraft(LimitedDraft):
    """A limited draft model that reads several sequences in one pass."""

    _model: RaggedModel

    def new_caches(self, capacity: int, texts: int) -> Sequence[TextCache]:
        return self._model.new_caches(capacity, texts)

    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        readable = [part._replace(tokens=self.readable(part.tokens)) for part in parts]
        outputs = self._model.forward_ragged(readable, wants)
        if isinstance(outputs, RaggedOutputs) and not wants.any:
            return RaggedOutputs(Output(self.limited(outputs.logits)), outputs.sizes)
        return [self._shown(output) for output in outputs]


class LimitedStaticDraft(LimitedRaggedDraft):
    """A limited built-in draft model, whose pass can also be captured as a CUDA graph."""

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
        return self._shown(self._model.forward_static(self.readable(tokens), positions, cache, slots, mask, wants))


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
    if isinstance(draft, Transformer):
        return LimitedStaticDraft(draft, left, vocabulary)
    kind = LimitedRaggedDraft if isinstance(draft, RaggedModel) else LimitedDraft
    return kind(draft, left, vocabulary)
