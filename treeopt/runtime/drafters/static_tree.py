"""Static trees: a draft model fills the same tree in every step, level by level, by passes over its internal nodes."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeDrafts, fed_before, level_nodes
from treeopt.runtime.drafters.draft_model import DraftModel, DraftSource, NewDrafts, TextDraft, outputs_at_roots
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.graphs import GraphPool, passes_over
from treeopt.runtime.models.model import NOTHING, LanguageModel, States, Wants, caches_of_texts
from treeopt.runtime.models.passes import NOT_FED, PassNodes, TreePass
from treeopt.runtime.models.together import PassCall, joined_logits, last_logits, run_together
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree, chain

KEPT = 8
"""Trees whose passes and buffers are kept."""


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
        self._name, self._device = model.name, model.device
        self._new_buffers = partial(
            DraftBuffers,
            nodes=max_nodes,
            rule=rule,
            sampling=sampling,
            vocabulary=model.config.vocabulary,
            device=model.device,
        )
        self._buffers = self._new_buffers(1, internal=_internal_nodes(tree))
        self._drafts_of = lru_cache(maxsize=KEPT)(TreeDrafts)
        self._last = tree, self._drafts_of(tree, 1, self._buffers)
        self._texts = Texts(lambda texts: [_FilledTree(draft, self.tree) for draft in new_drafts(texts)])

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        self._texts.begin(text).draft.begin(tokens, states)

    def reserve(self, texts: int) -> None:
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots, in buffers that the next call writes over."""
        filled = [self._texts[text] for text in texts]
        if self.sampled:
            noise = [generator_on(self._device, each) for each in noise]
        ready = [number for number, each in enumerate(filled) if each.draft.ready]
        if len(ready) == len(filled):
            return self._fill(filled, noise)
        found = [Proposal(ROOT_ALONE, torch.tensor([each.draft.root])) for each in filled]
        if ready:
            drafted = self._fill([filled[number] for number in ready], [noise[number] for number in ready])
            for number, proposal in zip(ready, drafted, strict=True):
                found[number] = proposal
        return found

    def _fill(self, filled: Sequence["_FilledTree"], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots of texts at which there is something to draft from."""
        into = self._drafts(len(filled))
        into.begin([each.draft.root for each in filled])
        if into.levels:
            first, *below = into.levels
            first.fill(last_logits(outputs_at_roots([each.draft for each in filled])), noise)
            for number, level in enumerate(below, start=1):
                passes = zip(filled, level.fed(), strict=True)
                outputs = run_together([PassCall(each.runs[number], tokens) for each, tokens in passes])
                level.fill(joined_logits(outputs), noise)
        return [
            Proposal(self.tree, tokens, probs, scores=Scores(self._name, scores, into.scored))
            for tokens, probs, scores in zip(into.tokens, into.probs, into.scores, strict=True)
        ]

    def _drafts(self, texts: int) -> TreeDrafts:
        """Return where the tree of so many texts is drafted into."""
        last_tree, last = self._last
        if last_tree is self.tree and last.texts == texts:
            return last  # most often, and then nothing is looked up
        internal = _internal_nodes(self.tree)
        if texts > self._buffers.texts or internal > self._buffers.internal:
            self._drafts_of.cache_clear()
            self._buffers = self._new_buffers(
                max(texts, self._buffers.texts), internal=max(internal, self._buffers.internal)
            )
        found = self._drafts_of(self.tree, texts, self._buffers)
        found.clear()  # only now: a proposal of the tree before lasts until the next one
        self._last = self.tree, found
        return found

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].accept(step)

    def end(self, text: int) -> None:
        self._texts.end(text)


class StaticTreeDrafter(FilledTreeDrafter):
    """Drafts a static tree with a small model that shares the target's vocabulary.

    Args:
        model: the draft model.
        tree: the tree.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        capacity: longest text; nothing is drafted in one longer than the model takes.
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
        capacity = min(capacity, model.config.max_positions)

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


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a device: the same, or one seeded by it, because random numbers stay where they are drawn."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _internal_nodes(tree: TokenTree) -> int:
    return int(np.count_nonzero(tree.child_counts))


class _FilledTree:
    """What fills the tree at one text."""

    def __init__(self, draft: TextDraft, tree: TokenTree) -> None:
        self.draft = draft
        self._runs_of = lru_cache(maxsize=KEPT)(lambda tree: draft.passes.make(level_nodes(tree)))
        self.take(tree)

    def take(self, tree: TokenTree) -> None:
        """Fill another tree from the next step on; the passes of those filled last are kept."""
        self.runs = self._runs_of(tree)
        """Of each level."""
        self._fed = fed_before(tree)

    def accept(self, step: Step) -> None:
        """Move on to a new root, and forget what is not finite behind the text where the draft was cut for it."""
        self.draft.accept(step, self._fed)
        if step.cut:
            self.draft.passes.clean()

    def miss(self, step: Step) -> None:
        """Move on to a new root where something else drafted: all of the step is to be read."""
        self.draft.accept(step, [NOT_FED] * (step.path[-1] + 1))
