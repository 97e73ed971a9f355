"""What drafts at one text, and a draft model there: its cache, and the tokens at the text's end that it was not fed."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.drafters.drafted_nodes import Children
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.models.model import LanguageModel, ModelSizes, Output, States, TextCache
from treeopt.runtime.models.passes import Pass, Passes, PassNodes, TreePass
from treeopt.runtime.models.together import PassCall, run_together
from treeopt.trees import chain

MOST_READ = 512
"""Tokens of a pass over what was not fed: its mask has a row and a column for each."""


class DraftSource(Protocol):
    """What gives the distributions that trees are filled from: a draft model, or a head on the target."""

    @property
    def name(self) -> str:
        """What errors and warnings call it."""

    @property
    def device(self) -> torch.device:
        """Where tokens go in and logits come out."""

    @property
    def config(self) -> ModelSizes:
        """Its sizes."""


class TextDraft(Protocol):
    """A draft model or a head at one text."""

    @property
    def passes(self) -> Passes:
        """Over nodes behind the text; the root is fed at place 0."""

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

    def unread(self) -> PassCall:
        """Return the next pass over what of the text was not fed."""

    def read(self) -> None:
        """Commit what that pass fed, but for the root."""

    def accept(self, step: Step, fed: Sequence[int]) -> None:
        """Move on to a new root; `fed` tells of each node how many were fed in this step before it, -1 for not at all."""


NewDrafts = Callable[[int], Sequence[TextDraft]]
"""Makes a draft model or a head ready for so many texts."""


class DraftModel:
    """A model that drafts below one text's root.

    The cache holds the committed text but for `pending`, the tokens that were not fed: the root, and before it the
    accepted leaf, which was never fed because it had no children.  Where steps draft nothing, what is pending grows, and
    all of it is fed when drafting begins again, `MOST_READ` tokens at a time.
    Behind the text stand the step's nodes, in the order of feeding.
    A text that grows longer than the model takes is no longer read, and nothing is drafted there.

    Args:
        model: the model.
        cache: of one text, with room for the longest and all nodes fed in a step.
        passes: over this cache.
    """

    def __init__(self, model: LanguageModel, cache: TextCache, passes: Passes) -> None:
        self.model = model
        self.cache = cache
        self.passes = passes
        self.pending: list[int] = []
        self.ready = True
        self._runs = passes.make([PassNodes.whole(chain(0)), PassNodes.whole(chain(1))])

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
        return len(self.pending) > len(self._runs)

    def unread(self) -> PassCall:
        """Return the next pass over what is pending."""
        if self.behind:
            missed = self.pending[: min(len(self.pending) - 1, MOST_READ)]
            return self._over(missed, self.passes.once(PassNodes.whole(chain(len(missed) - 1))))
        return self._over(self.pending, self._runs[len(self.pending) - 1])

    def read(self) -> None:
        """Commit what was pending and is fed, but for the root."""
        count = min(len(self.pending) - 1, MOST_READ)
        if count:
            self.cache.length += count
            del self.pending[:count]

    def accept(self, step: Step, fed: Sequence[int]) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        if not self.ready:
            self.pending = [step.tokens[-1]]
            return
        kept = [fed[node] for node in step.path if fed[node] >= 0]
        if kept:
            self.cache.keep(0, kept)
        self.pending[-1:] = [self.root, *step.tokens][len(kept) :]
        self.ready = self.cache.length + len(self.pending) <= self.model.config.max_positions

    def _over(self, tokens: Sequence[int], run: Pass) -> PassCall:
        return PassCall(run, torch.from_numpy(np.array(tokens)).to(self.model.device, non_blocking=True))


def outputs_at_roots(drafts: Sequence[TextDraft]) -> list[Output]:
    """Feed texts up to their roots where they were not yet; the last row of each output is the root's.

    What they need at the same time is one pass.
    """
    while behind := [draft for draft in drafts if draft.behind]:
        _read(behind)
    return _read(drafts)


def _read(drafts: Sequence[TextDraft]) -> list[Output]:
    """Return what the next pass over each text gives."""
    outputs = run_together([draft.unread() for draft in drafts])
    for draft in drafts:
        draft.read()
    return outputs


def feed(model: LanguageModel, cache: TextCache, tokens: Int64, nodes: PassNodes, *, children: int) -> Children:
    """Feed nodes of a tree to a draft model and return so many of the likeliest tokens after each."""
    run = TreePass(model, cache, nodes, capacity=cache.length)
    log_probs, following = likeliest_children(run(torch.from_numpy(tokens).to(model.device)).logits, children)
    return Children(log_probs.cpu().numpy(), following.cpu().numpy())


def likeliest_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return float32 (m, count), the log-probabilities at temperature 1 of the likeliest tokens after m nodes, and these."""
    log_probs, tokens = logits.float().log_softmax(-1).topk(count)
    return log_probs, tokens
