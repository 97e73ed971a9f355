"""The part that drafters share whose trees grow anew in every step out of a draft model's probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from treeopt.runtime.drafters.draft_model import DraftModel, feed, likeliest_children
from treeopt.runtime.drafters.drafted_nodes import Beams, Children, Expanded
from treeopt.runtime.drafters.drafter import NOTHING, Proposal, Scores, States, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import LanguageModel, TextCache
from treeopt.runtime.models.passes import TreePasses

NOT_EXPANDED = Expanded(ROOT_ALONE, [], [0])


@dataclass(slots=True)
class _Expansion:
    """One text's draft model, and the nodes that it was fed in this step."""

    draft: DraftModel
    fed: list[int] = field(default_factory=list)


class ExpandingDrafter(ABC):
    """A `Drafter` with a draft model; the classes below say how a tree grows.

    Args:
        model: the draft model; its probabilities are those of temperature 1, whatever the target's.
        new_cache: makes a cache of one text, with room for the longest and all nodes fed in a step.
        capacity: longest text.
        children: tokens wanted after each node.
        max_nodes: most nodes of a tree.
    """

    sampled = False
    wants = NOTHING

    def __init__(
        self,
        model: LanguageModel,
        new_cache: Callable[[], TextCache],
        *,
        capacity: int,
        children: int,
        max_nodes: int,
    ) -> None:
        self.model = model
        self.max_tokens = max_nodes
        self._new_cache = new_cache
        self._capacity = capacity
        self._children = children
        self._texts = Texts(self._new_text)

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:  # noqa: ARG002
        """See `Drafter`."""
        self._texts.begin(text).draft.begin(tokens)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone where a distribution on the way is not finite."""
        return [self._propose(self._texts[text]) for text in texts]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """See `Drafter`."""
        for text, step in zip(texts, steps, strict=True):
            expansion = self._texts[text]
            expansion.draft.accept(step.path, step.tokens, expansion.fed)

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.end(text)

    @abstractmethod
    def _expand(self, root: Children, feed: Callable[[Beams], Children]) -> Expanded | None:
        """Return the tree of a step, given the children of the root; None where those of a node are not finite."""

    def _propose(self, expansion: _Expansion) -> Proposal:
        def feed_beams(beams: Beams) -> Children:
            return feed(self.model, expansion.draft.cache, beams.tokens, beams.nodes, children=self._children)

        root = likeliest_children(expansion.draft.feed_root(), self._children)
        expanded = self._expand(root, feed_beams) if root.finite else None
        found = NOT_EXPANDED if expanded is None else expanded
        expansion.fed = found.fed
        tokens = torch.tensor([expansion.draft.root, *found.tokens])
        return Proposal(found.tree, tokens, scores=Scores.missing(self.model.name) if expanded is None else None)

    def _new_text(self) -> _Expansion:
        cache = self._new_cache()
        return _Expansion(DraftModel(self.model, cache, TreePasses(self.model, cache, self._capacity)))
