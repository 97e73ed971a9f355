"""The part that drafters share whose trees grow anew in every step out of a draft model's probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch

from treeopt.runtime.drafters.draft_model import (
    DraftModel,
    DraftSource,
    NewDrafts,
    TextDraft,
    likeliest_children,
    outputs_at_roots,
)
from treeopt.runtime.drafters.drafted_nodes import Beams, Expanded, TextChildren
from treeopt.runtime.drafters.drafter import NOTHING, Proposal, Scores, States, Step, Wants
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import LanguageModel, Output, TextCache
from treeopt.runtime.models.passes import TreePasses
from treeopt.runtime.models.together import PassCall, joined_logits, run_together

NOT_EXPANDED = Expanded(ROOT_ALONE, [], [0])


class Expansion(Protocol):
    """The tree of one text's step, from the children of the nodes fed so far."""

    def frontier(self) -> Beams | None:
        """Return the nodes that are fed next; None where no further pass is wanted."""

    def add(self, children: TextChildren) -> None:
        """Add the children of the nodes that `frontier` returned last."""

    def best(self) -> Expanded:
        """Return the tree to verify."""


@dataclass(slots=True)
class _Text:
    """What drafts at one text, and the nodes that it was fed in this step."""

    draft: TextDraft
    fed: list[int] = field(default_factory=list)


class ExpandingDrafter(ABC):
    """A `Drafter` with a draft model, or a head on the target; the classes below say how a tree grows.

    Args:
        model: what gives the distributions; they are those of temperature 1, whatever the target's.
        new_drafts: makes it ready for so many texts.
        children: tokens wanted after each node.
        max_nodes: most nodes of a tree.
        wants: hidden states of the target that it reads.
    """

    sampled = False

    def __init__(
        self,
        model: DraftSource,
        new_drafts: NewDrafts,
        *,
        children: int,
        max_nodes: int,
        wants: Wants = NOTHING,
    ) -> None:
        self.max_tokens = max_nodes
        self.wants = wants
        self._model = model
        self._children = children
        self._texts = Texts(lambda texts: [_Text(draft) for draft in new_drafts(texts)])

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        """See `Drafter`."""
        self._texts.begin(text).draft.begin(tokens, states)

    def reserve(self, texts: int) -> None:
        """See `BatchedDrafter`."""
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone where a distribution on the way is not finite."""
        at = [self._texts[text] for text in texts]
        drafting = [each for each in at if each.draft.ready]
        expanded = iter(self._expanded([each.draft for each in drafting]) if drafting else [])
        return [self._proposal(each, next(expanded) if each.draft.ready else NOT_EXPANDED) for each in at]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """See `Drafter`."""
        for text, step in zip(texts, steps, strict=True):
            at = self._texts[text]
            at.draft.accept(step, at.fed)

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.end(text)

    @abstractmethod
    def _expansion(self, root: TextChildren) -> Expansion:
        """Return how the tree of a step grows, given the children of the root."""

    def _expanded(self, drafts: Sequence[TextDraft]) -> list[Expanded | None]:
        """Return the tree of each of some texts, None where a distribution is not finite; a pass is one for all of them."""
        roots = [each.last() for each in self._children_after(outputs_at_roots(drafts))]
        expansions = [self._expansion(root) if root.finite else None for root in roots]
        while True:
            fed = [(number, beams) for number, each in enumerate(expansions) if each and (beams := each.frontier())]
            if not fed:
                return [each.best() if each else None for each in expansions]
            outputs = run_together([self._pass(drafts[number], beams) for number, beams in fed])
            for (number, _), children in zip(fed, self._children_after(outputs), strict=True):
                each = expansions[number]
                if each and children.finite:
                    each.add(children)
                else:
                    expansions[number] = None

    def _pass(self, draft: TextDraft, beams: Beams) -> PassCall:
        return PassCall(draft.passes.once(beams.nodes), torch.from_numpy(beams.tokens).to(self._model.device))

    def _children_after(self, outputs: Sequence[Output]) -> list[TextChildren]:
        """Return the likeliest tokens after the nodes that each output is of."""
        log_probs, tokens = (each.tolist() for each in likeliest_children(joined_logits(outputs), self._children))
        edges = pairwise(accumulate((output.logits.shape[0] for output in outputs), initial=0))
        return [TextChildren(log_probs[start:stop], tokens[start:stop]) for start, stop in edges]

    def _proposal(self, at: _Text, expanded: Expanded | None) -> Proposal:
        found = NOT_EXPANDED if expanded is None else expanded
        at.fed = found.fed
        tokens = torch.from_numpy(np.array([at.draft.root, *found.tokens]))
        return Proposal(found.tree, tokens, scores=Scores.missing(self._model.name) if expanded is None else None)


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
