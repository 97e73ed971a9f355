"""The part that drafters share whose trees grow anew in every step out of a draft model's probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from treeopt.runtime.drafters.draft_model import DraftModel, DraftSource, NewDrafts, TextDraft, likeliest_together
from treeopt.runtime.drafters.drafted_nodes import Beams, Children, Expanded
from treeopt.runtime.drafters.drafter import NOTHING, Proposal, Scores, States, Step, Wants
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import LanguageModel, Output, TextCache
from treeopt.runtime.models.passes import TreePasses
from treeopt.runtime.models.together import PassCall, Passing, finish_together

Feed = Callable[[Beams], Passing[Children]]
"""Feeds nodes of a tree, which get children."""
NOT_EXPANDED = Expanded(ROOT_ALONE, [], [0])


@dataclass(slots=True)
class _Expansion:
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
        self._texts = Texts(lambda texts: [_Expansion(draft) for draft in new_drafts(texts)])

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        """See `Drafter`."""
        self._texts.begin(text).draft.begin(tokens, states)

    def reserve(self, texts: int) -> None:
        """See `BatchedDrafter`."""
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone where a distribution on the way is not finite."""
        return finish_together([self._propose(self._texts[text]) for text in texts])

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """See `Drafter`."""
        for text, step in zip(texts, steps, strict=True):
            expansion = self._texts[text]
            expansion.draft.accept(step, expansion.fed)

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.end(text)

    @abstractmethod
    def _expand(self, root: Children, feed: Feed) -> Passing[Expanded | None]:
        """Return the tree of a step, given the children of the root; None where those of a node are not finite."""

    def _propose(self, expansion: _Expansion) -> Passing[Proposal]:
        draft = expansion.draft
        if not draft.ready:
            expansion.fed = NOT_EXPANDED.fed
            return Proposal(NOT_EXPANDED.tree, torch.tensor([draft.root]))

        def feed_beams(beams: Beams) -> Passing[Children]:
            return feed(draft, beams, self._model.device, children=self._children)

        logits = yield from draft.root_logits()
        root = yield from likeliest_together(logits, self._children)
        expanded = (yield from self._expand(root, feed_beams)) if root.finite else None
        found = NOT_EXPANDED if expanded is None else expanded
        expansion.fed = found.fed
        tokens = torch.tensor([draft.root, *found.tokens])
        return Proposal(found.tree, tokens, scores=Scores.missing(self._model.name) if expanded is None else None)


def feed(draft: TextDraft, beams: Beams, device: torch.device, *, children: int) -> Passing[Children]:
    """Feed nodes of a tree and return so many of the likeliest tokens after each."""
    output: Output = yield PassCall(draft.passes.once(beams.nodes), torch.from_numpy(beams.tokens).to(device))
    return (yield from likeliest_together(output.logits, children))


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
