"""Drafters whose trees grow in every step out of the probabilities of a draft model, or of a head on the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.draft_model import (
    TextDraft,
    draft_models,
    likeliest_children,
    node_logits,
    root_logits,
)
from treeopt.runtime.drafters.drafted_nodes import DraftedNodes, Expanded, ExpansionPolicy
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import NOTHING, ForwardModel, States, Wants
from treeopt.runtime.models.runner import Runner, pool_for

NewDraftsOf = Callable[[Any, int, int, int], Sequence[TextDraft]]
"""From a model or a head, the longest text, the most nodes fed in a step and how many texts, to what drafts at each."""


@dataclass(slots=True)
class _Text:
    """What drafts at one text, and the nodes that it was fed in this step."""

    draft: TextDraft
    fed: list[int] = field(default_factory=list)
    finite: bool = True
    """Whether all distributions in this step are."""

    def accept(self, step: Step) -> None:
        """Move on to a new root, and forget what is not finite behind the text."""
        self.draft.accept(step, self.fed)
        if not self.finite:
            self.draft.cache.zero_nodes()


class ExpandingDrafter:
    """Grows the tree of every step where the draft is sure of itself (Li et al., 2024; Svirschevski et al., 2024).

    Args:
        model: a draft model that shares the target's vocabulary, or a head on the target; its probabilities are those of
            temperature 1, whatever the target's.
        policy: how trees grow: EAGLE-2's dynamic trees, or SpecExec's.
        capacity: longest text; nothing is drafted in one longer than the model takes.
        new_drafts: makes the model ready for texts of a length, with some nodes fed in a step; see `draft_models`.
        wants: hidden states of the target that the model reads.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for more children than the vocabulary has, and trees deeper than the longest text,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(
        self,
        model: ForwardModel,
        policy: ExpansionPolicy,
        *,
        capacity: int,
        new_drafts: NewDraftsOf = draft_models,
        wants: Wants = NOTHING,
        cuda_graphs: bool | None = None,
    ) -> None:
        vocabulary, longest = model.config.vocabulary, model.config.max_positions
        if policy.children > vocabulary:
            raise InvalidValueError(
                f"policy: expected at most {vocabulary} children of a node, the vocabulary. Got {policy.children}."
            )
        if policy.longest_draft > longest:
            raise InvalidValueError(
                f"policy: expected at most {longest} levels, the longest text that {model.name} takes. "
                f"Got {policy.longest_draft}."
            )
        self.policy, self.wants, self.max_tokens = policy, wants, policy.max_nodes
        self._model = model
        self._runner = Runner(model, max_nodes=policy.max_fed, pool=pool_for(model.device, cuda_graphs))
        make = partial(new_drafts, model, min(capacity, longest), policy.max_fed)
        self._texts = Texts(lambda texts: [_Text(draft) for draft in make(texts)])
        self._nodes = DraftedNodes(policy, 0)
        self._nodes.compile()

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        self._texts.begin(text).draft.begin(tokens, states)

    def reserve(self, texts: int) -> None:
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone where a distribution on the way is not finite."""
        at = [self._texts[text] for text in texts]
        drafting = [each.draft for each in at if each.draft.ready]
        expanded = iter(self._expanded(drafting) if drafting else [])
        return [self._proposal(each, next(expanded) if each.draft.ready else None) for each in at]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].accept(step)

    def end(self, text: int) -> None:
        self._texts.end(text)

    def _expanded(self, drafts: Sequence[TextDraft]) -> list[Expanded]:
        """Return the tree of each of some texts; a pass is one for all of them."""
        if self._nodes.texts != len(drafts):
            self._nodes = DraftedNodes(self.policy, len(drafts))
        nodes = self._nodes
        nodes.begin([draft.root for draft in drafts])
        nodes.add(*likeliest_children(root_logits(self._runner, drafts), nodes.children))
        while fed := nodes.frontier():
            logits = node_logits(
                self._runner,
                [drafts[beams.text] for beams in fed],
                [beams.tokens.to(self._model.device) for beams in fed],
                [beams.nodes for beams in fed],
            )
            nodes.add(*likeliest_children(logits, nodes.children))
        return nodes.trees()

    def _proposal(self, at: _Text, expanded: Expanded | None) -> Proposal:
        if expanded is None:
            at.fed, at.finite = [0], True
            return Proposal(ROOT_ALONE, torch.tensor([at.draft.root]))
        at.fed, at.finite = expanded.fed, expanded.finite
        return Proposal(
            expanded.tree, expanded.tokens, scores=None if expanded.finite else Scores.missing(self._model.name)
        )
