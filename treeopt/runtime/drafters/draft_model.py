"""What drafts at one text, and a draft model there: its cache, and the tokens at the text's end that it was not fed."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.drafters.drafted_nodes import Children
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import Feed, LanguageModel, Output, Outputs, SequenceCache, States, feed_text
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import Runner

MOST_READ = 512
"""Tokens of a pass over what was not fed: its mask has a row and a column for each."""


class TextDraft(Protocol):
    """A draft model or a head at one text."""

    @property
    def cache(self) -> Any:
        """Of the text; the root is fed at its length."""

    @property
    def ready(self) -> bool:
        """Whether it can draft: a head cannot at a text that is its root alone, a model not at one too long for it."""

    @property
    def root(self) -> int:
        """The last committed token."""

    def begin(self, tokens: Sequence[int], states: States | None) -> None:
        """Begin a text whose last token is the root; `states` as in `Drafter.begin`."""

    @property
    def behind(self) -> bool:
        """Whether so much of the text was not fed that the next pass over it does not end with the root."""

    @staticmethod
    def feed_roots(texts: Sequence[Any]) -> list[Feed]:
        """Return the next tokens of each text that were not fed."""

    def read(self, output: Output) -> None:
        """Commit what that pass fed, but for the root; `output` is that of its last token."""

    def feed(self, tokens: Tensor, nodes: PassNodes) -> Feed:
        """Return nodes of the step's tree."""

    def fed(self, nodes: PassNodes, output: Output) -> None:
        """Store what nodes below them need of these nodes."""

    def accept(self, step: Step, fed: Sequence[int]) -> None:
        """Move on to a new root; `fed` is the feed index of each node in this step, -1 if it was not fed."""


NewDrafts = Callable[[int], Sequence[TextDraft]]
"""Makes a draft model or a head ready for so many texts."""


class DraftModel:
    """A model that drafts below one text's root.

    The cache holds the committed text but for `pending`, the tokens that were not fed: the root, and before it the
    accepted leaf, which was never fed because it had no children.  Where steps draft nothing, what is pending grows, and
    all of it is fed when drafting begins again, `MOST_READ` tokens at a time.
    After the text stand the step's nodes, in the order of feeding.
    A text that grows longer than the model takes is no longer read, and nothing is drafted there.

    Args:
        model: the model.
        cache: of one text, with room for the longest and all nodes fed in a step.
    """

    def __init__(self, model: LanguageModel, cache: SequenceCache) -> None:
        self.model = model
        self.cache = cache
        self.pending: list[int] = []
        self.ready = True

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.pending[-1]

    def begin(self, tokens: Sequence[int], states: States | None) -> None:  # noqa: ARG002
        """Begin a text whose last token is the root."""
        self.cache.clear()
        self.pending = [tokens[-1]]
        self.ready = len(tokens) <= self.model.config.max_positions
        if self.ready:
            self.model.prefill(torch.tensor(tokens[:-1], dtype=torch.int64, device=self.model.device), self.cache)

    @property
    def behind(self) -> bool:
        """Whether steps drafted nothing: else the root is pending, and at most an accepted leaf before it."""
        return len(self.pending) > 2

    @staticmethod
    def feed_roots(texts: "Sequence[DraftModel]") -> list[Feed]:
        """Return the pending tokens of each text; those before the root first, where they are many."""
        return [text._pending_feed() for text in texts]

    def _pending_feed(self) -> Feed:
        tokens = self.pending[: min(len(self.pending) - 1, MOST_READ)] if self.behind else self.pending
        return feed_text(self.cache, torch.from_numpy(np.array(tokens)).to(self.model.device, non_blocking=True))

    def read(self, output: Output) -> None:  # noqa: ARG002
        """Commit what was pending and is fed, but for the root."""
        count = min(len(self.pending) - 1, MOST_READ)
        if count:
            self.cache.length += count
            del self.pending[:count]

    def feed(self, tokens: Tensor, nodes: PassNodes) -> Feed:
        """Return nodes of the step's tree."""
        return Feed(self.cache, tokens, nodes)

    def fed(self, nodes: PassNodes, output: Output) -> None:
        """Do nothing: the cache has all that nodes below these need."""

    def accept(self, step: Step, fed: Sequence[int]) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        if not self.ready:
            self.pending = [step.tokens[-1]]
            return
        kept = [fed[node] for node in step.path if fed[node] >= 0]
        if kept:
            self.cache.keep(kept)
        self.pending[-1:] = [self.root, *step.tokens][len(kept) :]
        self.ready = self.cache.length + len(self.pending) <= self.model.config.max_positions


def draft_models(model: LanguageModel, capacity: int, nodes: int, texts: int) -> list[DraftModel]:
    """Return a draft model at each of some texts.

    Args:
        model: the draft model.
        capacity: longest text.
        nodes: most nodes of a text that are fed in a step.
        texts: how many.
    """
    return [DraftModel(model, cache) for cache in new_caches(model, capacity + nodes, texts)]


def root_logits(runner: Runner, drafts: Sequence[TextDraft]) -> Tensor:
    """Feed texts up to their roots where they were not yet, and return the logits (texts, V) after the roots.

    What they need at the same time is one pass.
    """
    while behind := [draft for draft in drafts if draft.behind]:
        _read(runner, behind)
    return _read(runner, drafts).logits


def _read(runner: Runner, drafts: Sequence[TextDraft]) -> Outputs:
    """Return what the next pass over each text gives."""
    outputs = runner.forward(drafts[0].feed_roots(drafts), last_only=True)
    for draft, output in zip(drafts, outputs, strict=True):
        draft.read(output)
    return outputs


def node_logits(
    runner: Runner, drafts: Sequence[TextDraft], tokens: Sequence[Tensor], nodes: Sequence[PassNodes]
) -> Tensor:
    """Feed nodes of each text's tree in one pass, and return the logits after them, one text after the other."""
    feeds = [draft.feed(fed, at) for draft, fed, at in zip(drafts, tokens, nodes, strict=True)]
    outputs = runner.forward(feeds)
    for draft, fed, output in zip(drafts, nodes, outputs, strict=True):
        draft.fed(fed, output)
    return outputs.logits


def feed(model: LanguageModel, cache: SequenceCache, tokens: Int64, nodes: PassNodes, *, children: int) -> Children:
    """Feed nodes of a tree to a draft model and return so many of the likeliest tokens after each."""
    logits = model.forward([Feed(cache, torch.from_numpy(tokens).to(model.device), nodes)]).logits
    log_probs, following = likeliest_children(logits, children)
    return Children(log_probs.cpu().numpy(), following.cpu().numpy())


def likeliest_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return float32 (m, count), the log-probabilities at temperature 1 of the likeliest tokens after m nodes, and these."""
    log_probs, tokens = logits.float().log_softmax(-1).topk(count)
    return log_probs, tokens
