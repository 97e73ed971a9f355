"""The part that drafters share whose trees grow anew in every step out of a draft model's probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from treeopt.runtime.drafters.draft_model import (
    DraftModel,
    DraftSource,
    NewDrafts,
    TextDraft,
    likeliest_children,
    outputs_at_roots,
)
from treeopt.runtime.drafters.drafted_nodes import Beams, DraftedNodes, Expanded
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import NOTHING, LanguageModel, States, TextCache, Wants
from treeopt.runtime.models.passes import TreePasses
from treeopt.runtime.models.together import PassCall, joined_logits, last_logits, run_together


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
            self.draft.passes.clean()


class ExpandingDrafter:
    """A `Drafter` with a draft model, or a head on the target, whose trees grow as `new_nodes` says.

    Args:
        model: what gives the distributions; they are those of temperature 1, whatever the target's.
        new_drafts: makes it ready for so many texts.
        new_nodes: makes what holds the nodes of a step in so many texts while their trees grow.
        wants: hidden states of the target that it reads.
    """

    sampled = False

    def __init__(
        self,
        model: DraftSource,
        new_drafts: NewDrafts,
        new_nodes: Callable[[int], DraftedNodes],
        *,
        wants: Wants = NOTHING,
    ) -> None:
        self.wants = wants
        self._model = model
        self._texts = Texts(lambda texts: [_Text(draft) for draft in new_drafts(texts)])
        self._new_nodes, self._nodes = new_nodes, new_nodes(0)
        self._nodes.compile()
        self.max_tokens = self._nodes.max_nodes

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
            self._nodes = self._new_nodes(len(drafts))
        nodes = self._nodes
        nodes.begin([draft.root for draft in drafts])
        nodes.add(*likeliest_children(last_logits(outputs_at_roots(drafts)), nodes.children))
        while fed := nodes.frontier():
            outputs = run_together([self._pass(drafts[beams.text], beams) for beams in fed])
            nodes.add(*likeliest_children(joined_logits(outputs), nodes.children))
        return nodes.trees()

    def _pass(self, draft: TextDraft, beams: Beams) -> PassCall:
        return PassCall(draft.passes.once(beams.nodes), beams.tokens.to(self._model.device))

    def _proposal(self, at: _Text, expanded: Expanded | None) -> Proposal:
        if expanded is None:
            at.fed, at.finite = [0], True
            return Proposal(ROOT_ALONE, torch.tensor([at.draft.root]))
        at.fed, at.finite = expanded.fed, expanded.finite
        return Proposal(
            expanded.tree, expanded.tokens, scores=None if expanded.finite else Scores.missing(self._model.name)
        )


def draft_models(
    model: LanguageModel, new_caches: Callable[[int], Sequence[TextCache]], capacity: int
) -> Callable[[int], list[DraftModel]]:
    """Return what makes a draft model ready for so many texts.

    Args:
        model: the draft model.
        new_caches: makes caches of one text, with room for the longest and all nodes fed in a step.
        capacity: longest text.
    """
    return lambda texts: [DraftModel(model, cache, TreePasses(model, cache, capacity)) for cache in new_caches(texts)]
