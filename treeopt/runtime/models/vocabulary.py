"""A draft model that proposes only tokens that its target shares."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.model import (
    NO_STATES,
    HiddenStates,
    LanguageModel,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
)
from treeopt.runtime.models.padded_batch import CapturableModel, PaddedPass


class LimitedDraft:
    """A draft model with the target's number of logits, all -inf except those of shared ids, which ascend.

    Ids without an embedding in the draft model are read as its end token.
    """

    def __init__(self, model: LanguageModel, ids: Sequence[int], vocabulary: int) -> None:
        self.model = model
        """The draft model with its own logits."""
        self.name = model.name
        self.dtype = model.dtype
        self.device = model.device
        self.parameters = model.parameters
        self.weight_bytes = model.weight_bytes
        self.captures: bool = getattr(model, "captures", False)
        self.ids = tuple(ids)
        shared = set(ids)
        sizes = model.config
        end_tokens = tuple(token for token in sizes.end_tokens if token in shared)
        self.config = replace(sizes, vocabulary=vocabulary, end_tokens=end_tokens)
        self._embeddings = sizes.vocabulary
        self._substitute = next((token for token in sizes.end_tokens if token < sizes.vocabulary), 0)
        self._width = ids[-1] + 1
        masked = [token for token in range(self._width) if token not in shared]
        self._masked = torch.tensor(masked, dtype=torch.int64, device=model.device) if masked else None

    def new_caches(self, capacity: int, sequences: int) -> Sequence[Any]:
        return self.model.new_caches(capacity, sequences)

    def cache_bytes(self, capacity: int) -> int:
        return self.model.cache_bytes(capacity)

    def pass_bytes(self, tokens: int) -> int:
        return self.model.pass_bytes(tokens)

    def prefill(self, tokens: Tensor, cache: Any, requested_states: RequestedStates = NO_STATES) -> HiddenStates | None:
        return self.model.prefill(self.substitute_unknown(tokens), cache, requested_states)

    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,
        *,
        last_only: bool = False,
    ) -> Outputs:
        known = [sequence._replace(tokens=self.substitute_unknown(sequence.tokens)) for sequence in inputs]
        outputs = self.model.forward(known, requested_states, last_only=last_only)
        return Outputs(outputs.whole._replace(logits=self._mask_logits(outputs.logits)), outputs.sizes)

    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:
        model = cast("CapturableModel", self.model)
        output = model.run_padded(padded._replace(tokens=self.substitute_unknown(padded.tokens)), requested_states)
        return output._replace(logits=self._mask_logits(output.logits))

    def substitute_unknown(self, tokens: Tensor) -> Tensor:
        """Replace tokens without an embedding."""
        if self._embeddings >= self.config.vocabulary:
            return tokens
        return torch.where(tokens < self._embeddings, tokens, self._substitute)

    def _mask_logits(self, logits: Tensor) -> Tensor:
        """Return logits (..., vocabulary of the target), given the draft model's own."""
        padding = (0, self.config.vocabulary - self._width)
        logits = F.pad(logits[..., : self._width], padding, value=float("-inf"))  # a copy, also without padding
        return logits if self._masked is None else logits.index_fill_(-1, self._masked, float("-inf"))


def limit_draft(draft: LanguageModel, ids: Collection[int], vocabulary: int) -> LanguageModel:
    """Return a draft model that proposes shared ids only; the model itself if all its logits are shared.

    Ids without logits in both models are ignored.  Raises InvalidValueError if no id remains.
    """
    columns = min(vocabulary, draft.config.vocabulary)
    shared = sorted(index for index in ids if index < columns)
    if not shared:
        raise InvalidValueError(
            f"draft: expected logits of tokens that the target shares. Got {columns} logits: choose a draft of the same "
            "family.",
            field="draft",
        )
    if len(shared) == vocabulary == draft.config.vocabulary:
        return draft
    return LimitedDraft(draft, shared, vocabulary)
