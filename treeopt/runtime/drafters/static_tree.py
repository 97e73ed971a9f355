"""Static trees: a draft model fills the same tree in every step, level by level, by passes over its internal nodes."""

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeDraft
from treeopt.runtime.drafters.draft_model import DraftModel, DraftSource, NewDrafts, TextDraft
from treeopt.runtime.drafters.drafter import NOTHING, Proposal, Scores, States, Step, Wants
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.graphs import GraphPool, passes_over
from treeopt.runtime.models.model import LanguageModel, Output, caches_of_texts
from treeopt.runtime.models.passes import PassNodes, TreePass
from treeopt.runtime.models.together import PassCall, Passing, finish_together
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree, chain

NOT_FED = -1
"""Of a node, in place of how many were fed before it."""
KEPT = 8
"""Trees of a text whose passes are kept."""


class FilledTreeDrafter:
    """Fills the same tree in every step with what a draft model, or a head on the target, says below the root.

    Args:
        model: what gives the distributions.
        new_drafts: makes it ready for so many texts.
        tree: the tree.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        max_nodes: nodes of the largest tree.
        wants: hidden states of the target that it reads.
    """

    def __init__(
        self,
        model: DraftSource,
        new_drafts: NewDrafts,
        tree: TokenTree,
        *,
        rule: Rule,
        sampling: Sampling,
        max_nodes: int,
        wants: Wants = NOTHING,
    ) -> None:
        self.tree = tree
        self.max_tokens = max_nodes
        self.sampled = rule.random_drafts
        self.wants = wants
        self._texts = Texts(
            lambda texts: [
                _FilledTree(
                    model.name,
                    draft,
                    self.tree,
                    DraftBuffers(
                        max_nodes,
                        rule=rule,
                        sampling=sampling,
                        vocabulary=model.config.vocabulary,
                        device=model.device,
                    ),
                )
                for draft in new_drafts(texts)
            ]
        )

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        """See `Drafter`."""
        self._texts.begin(text).draft.begin(tokens, states)

    def reserve(self, texts: int) -> None:
        """See `BatchedDrafter`."""
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots, in buffers that the next call writes over."""
        return finish_together(
            [self._texts[text].propose(generator) for text, generator in zip(texts, noise, strict=True)]
        )

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """See `Drafter`."""
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].accept(step)

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.end(text)


class StaticTreeDrafter(FilledTreeDrafter):
    """Drafts a static tree with a small model that shares the target's vocabulary.

    Args:
        model: the draft model.
        tree: the tree.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        capacity: longest text.
        max_nodes: nodes of the largest tree; by default this tree's.
        pool: where passes are captured as graphs, or None to run them operation by operation.
    """

    def __init__(
        self,
        model: LanguageModel,
        tree: TokenTree,
        *,
        rule: Rule,
        sampling: Sampling,
        capacity: int,
        max_nodes: int | None = None,
        pool: GraphPool | None = None,
    ) -> None:
        most = tree.nodes if max_nodes is None else max_nodes

        def new_drafts(texts: int) -> list[DraftModel]:
            caches = caches_of_texts(model, capacity + most, texts)
            passes = partial(passes_over, model, capacity=capacity, max_nodes=most, pool=pool)
            return [DraftModel(model, cache, passes(cache)) for cache in caches]

        super().__init__(model, new_drafts, tree, rule=rule, sampling=sampling, max_nodes=most)
        self.model = model

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the draft model's logits (n, V) after each of some tokens, read as a text of their own."""
        cache, nodes = self.model.new_cache(len(tokens)), PassNodes.whole(chain(len(tokens) - 1))
        read = TreePass(self.model, cache, nodes, capacity=0)
        logits: Tensor = read(torch.tensor(tokens, dtype=torch.int64, device=self.model.device)).logits
        return logits

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree from the next step on, in all texts."""
        self.tree = tree
        for filled in self._texts:
            filled.take(tree)

    def miss(self, text: int, step: Step) -> None:
        """Move on to a new root in a text where something else drafted."""
        self._texts[text].miss(step)


class _FilledTree:
    """The tree of one text and what fills it."""

    def __init__(self, name: str, draft: TextDraft, tree: TokenTree, buffers: DraftBuffers) -> None:
        self.draft = draft
        self._name = name
        self._draft_of = lru_cache(maxsize=KEPT)(lambda tree: TreeDraft(tree, draft.passes, buffers))
        self.take(tree)

    def take(self, tree: TokenTree) -> None:
        """Fill another tree from the next step on; what was made for those filled last is kept."""
        self._tree = tree
        self._into = self._draft_of(tree)
        self._cleared = False  # a proposal of the tree before lasts until the next one
        self._fed: list[int] = self._into.fed.tolist()

    def propose(self, noise: torch.Generator) -> Passing[Proposal]:
        """Return the tree below the root; the root alone is no work for the draft model."""
        if not self.draft.ready:
            return Proposal(ROOT_ALONE, torch.tensor([self.draft.root]))
        into = self._into
        if not self._cleared:
            into.clear()
            self._cleared = True
        into.root.fill_(self.draft.root)
        if into.levels:
            into.fill_noise(noise)
            first, *below = into.levels
            logits = yield from self.draft.root_logits()
            first.children.copy_((yield from first.sample(logits, noise)))
            for level in below:
                output: Output = yield PassCall(level.run, level.fed.read())
                level.children.copy_((yield from level.sample(output.logits, noise)))
        scores = Scores(self._name, into.scores, into.scored)
        return Proposal(self._tree, into.tokens, into.probs, scores=scores)

    def accept(self, step: Step) -> None:
        """Move on to a new root, and forget what is not finite behind the text where the draft was cut for it."""
        self.draft.accept(step, self._fed)
        if step.cut:
            self.draft.passes.clean()

    def miss(self, step: Step) -> None:
        """Move on to a new root where something else drafted: all of the step is to be read."""
        self.draft.accept(step, [NOT_FED] * (step.path[-1] + 1))
