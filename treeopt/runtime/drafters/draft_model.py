"""Drafting node by node with a draft model, or a head on the target: passes, and the state of a sequence."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle.head import EagleHead, EagleSequence
from treeopt.runtime.drafters.heads import check_children
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import (
    NO_STATES,
    HiddenStates,
    LanguageModel,
    Output,
    Outputs,
    SequenceCache,
    SequenceInput,
)
from treeopt.runtime.models.nodes import NOT_FED, PassNodes
from treeopt.runtime.models.runner import GraphPool, Runner, make_graph_pool

MAX_CATCH_UP_TOKENS = 512
"""Tokens of a pass over unread tokens, whose mask is square."""
DraftModel = LanguageModel | EagleHead
"""A model that drafts node by node: one of its own, or a head on the target."""


class DraftModelSequence:
    """A draft model at one sequence.

    The cache contains the committed tokens but `pending`: the root, and before it the accepted leaf, which had no
    children and so was not fed.  Steps of other drafters add to the pending tokens, which are fed when drafting
    resumes, `MAX_CATCH_UP_TOKENS` at a time.  The step's nodes follow in the order they were fed. Once a sequence is
    longer than the model takes, nothing is read or drafted any more.
    """

    def __init__(self, model: LanguageModel, cache: SequenceCache) -> None:
        self.model = model
        self.cache = cache
        self.pending: list[int] = []
        self.ready = True
        self.feed_indices: Sequence[int] = ()
        """Of every node of the step's tree, NOT_FED if it was not fed; the drafter sets it when it proposes the tree."""

    @property
    def root(self) -> int:
        return self.pending[-1]

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self.cache.clear()
        self.pending = [tokens[-1]]
        self.ready = len(tokens) <= self.model.config.max_positions
        if self.ready:
            self.model.prefill(torch.tensor(tokens[:-1], dtype=torch.int64, device=self.model.device), self.cache)

    @property
    def has_backlog(self) -> bool:
        """Whether there are so many unread tokens that the next pass does not reach the root."""
        return len(self.pending) > 2

    @staticmethod
    def feed_roots(sequences: Sequence[Any]) -> list[SequenceInput]:
        """Return the next unread tokens of each sequence, up to the root."""
        return [sequence._feed_pending() for sequence in sequences]

    def _feed_pending(self) -> SequenceInput:
        tokens = self.pending[: min(len(self.pending) - 1, MAX_CATCH_UP_TOKENS)] if self.has_backlog else self.pending
        return SequenceInput.causal(
            self.cache, torch.from_numpy(np.array(tokens)).to(self.model.device, non_blocking=True)
        )

    def commit_fed(self, output: Output) -> None:  # noqa: ARG002
        """Commit the tokens of that pass but the root, given the output at the last token."""
        count = min(len(self.pending) - 1, MAX_CATCH_UP_TOKENS)
        if count:
            self.cache.length += count
            del self.pending[:count]

    def feed(self, tokens: Tensor, nodes: PassNodes) -> SequenceInput:
        """Return nodes of the step's tree as input of a pass."""
        return SequenceInput(self.cache, tokens, nodes)

    def store(self, output: Output) -> None:
        """Store what the children of the fed nodes need of the output: nothing but the cache."""

    def accept(self, step: Step) -> None:
        """Commit the fed nodes of the accepted path; the other committed tokens are pending."""
        if not self.ready:
            self.pending = [step.tokens[-1]]
            return
        fed = [self.feed_indices[node] for node in step.path if self.feed_indices[node] != NOT_FED]
        if fed:
            self.cache.commit(fed)
        self.pending[-1:] = [self.root, *step.tokens][len(fed) :]
        if step.truncated:  # the cache is not finite after the committed tokens
            self.cache.zero_nodes()
        self.ready = self.cache.length + len(self.pending) <= self.model.config.max_positions


DraftSequence = DraftModelSequence | EagleSequence
"""A draft model, or a head, at one sequence; both have the same methods."""


def new_draft_sequences(model: DraftModel, capacity: int, nodes: int, sequences: int) -> Sequence[DraftSequence]:
    """Return the state of a draft model, or of a head, for several sequences, each fed up to `nodes` nodes in a step."""
    capacity = min(capacity, model.config.max_positions)
    if isinstance(model, EagleHead):
        return model.new_sequences(capacity, nodes, sequences)
    caches = new_caches(model, capacity + nodes, sequences)
    return [DraftModelSequence(model, cache) for cache in caches]


class NodeDrafter(SequenceDrafter[DraftSequence]):
    """Feeds a draft model, or a head on the target, at most `max_fed` nodes of a sequence in a step."""

    def __init__(
        self,
        model: DraftModel,
        *,
        capacity: int,
        max_fed: int,
        cuda_graphs: bool | None,
        pool: GraphPool | None = None,
    ) -> None:
        self.model = model
        self.requested_states = model.requested_states if isinstance(model, EagleHead) else NO_STATES
        self.capacity = capacity if capacity < model.config.max_positions else None
        self._runner = Runner(model, max_nodes=max_fed, pool=pool or make_graph_pool(model.device, cuda_graphs))
        super().__init__(partial(new_draft_sequences, model, capacity, max_fed))


def check_drafted(argument: str, model: DraftModel, *, children: int, levels: int) -> None:
    """Raise InvalidValueError for more children of a node than a model predicts tokens, and for trees that are too deep."""
    tokens = model.tokens if isinstance(model, EagleHead) else model.config.vocabulary
    check_children(argument, children, model.name, tokens)
    longest = model.config.max_positions
    if levels > longest:
        raise InvalidValueError(
            f"{argument}: expected at most {longest} levels, the longest sequence that {model.name} takes. Got {levels}."
        )


def root_logits(runner: Runner, drafts: Sequence[DraftSequence]) -> Tensor:
    """Feed the unread tokens of each sequence and return the logits (sequences, V) after the roots."""
    while backlog := [draft for draft in drafts if draft.has_backlog]:
        _read_pending(runner, backlog)
    return _read_pending(runner, drafts).logits


def _read_pending(runner: Runner, drafts: Sequence[DraftSequence]) -> Outputs:
    outputs = runner.forward(drafts[0].feed_roots(drafts), last_only=True)
    for draft, output in zip(drafts, outputs, strict=True):
        draft.commit_fed(output)
    return outputs


def node_logits(
    runner: Runner, drafts: Sequence[DraftSequence], tokens: Sequence[Tensor], nodes: Sequence[PassNodes]
) -> Tensor:
    """Feed tree nodes of each sequence in one pass and return the logits after them, concatenated."""
    inputs = [draft.feed(ids, pass_nodes) for draft, ids, pass_nodes in zip(drafts, tokens, nodes, strict=True)]
    outputs = runner.forward(inputs)
    for draft, output in zip(drafts, outputs, strict=True):
        draft.store(output)
    return outputs.logits


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities at temperature 1, float32 (..., count) in falling order, and tokens, for logits (..., V)."""
    log_probs, tokens = logits.float().log_softmax(-1).topk(count)
    return log_probs, tokens
