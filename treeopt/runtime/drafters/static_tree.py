"""Static trees: a draft model fills the same tree in every step, level by level, by passes over its internal nodes."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeDrafts, feed_indices, level_nodes
from treeopt.runtime.drafters.draft_model import NewDrafts, TextDraft, draft_models, node_logits, root_logits
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import NOTHING, ForwardModel, LanguageModel, States, Wants, feed_text
from treeopt.runtime.models.nodes import NOT_FED
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree

KEPT = 8
"""Trees whose passes and buffers are kept."""


class FilledTreeDrafter:
    """Fills the same tree in every step with what a draft model, or a head on the target, says below the root.

    Args:
        model: what gives the distributions: a draft model, or a head on the target.
        new_drafts: makes it ready for so many texts.
        tree: the tree.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        max_nodes: nodes of the largest tree.
        wants: hidden states of the target that it reads.
        pool: where passes are captured as graphs, or None to run them operation by operation.
    """

    def __init__(
        self,
        model: ForwardModel,
        new_drafts: NewDrafts,
        tree: TokenTree,
        *,
        rule: Rule,
        sampling: Sampling,
        max_nodes: int,
        wants: Wants = NOTHING,
        pool: GraphPool | None = None,
    ) -> None:
        self.tree = tree
        self._runner = Runner(model, max_nodes=max_nodes, pool=pool)
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
        self._texts = Texts(new_drafts)

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        self._texts.begin(text).begin(tokens, states)

    def reserve(self, texts: int) -> None:
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots, in buffers that the next call writes over."""
        drafts = [self._texts[text] for text in texts]
        if self.sampled:
            noise = [generator_on(self._device, each) for each in noise]
        ready = [number for number, draft in enumerate(drafts) if draft.ready]
        if len(ready) == len(drafts):
            return self._fill(drafts, noise)
        found = [Proposal(ROOT_ALONE, torch.tensor([draft.root])) for draft in drafts]
        if ready:
            drafted = self._fill([drafts[number] for number in ready], [noise[number] for number in ready])
            for number, proposal in zip(ready, drafted, strict=True):
                found[number] = proposal
        return found

    def _fill(self, drafts: Sequence[TextDraft], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots of texts at which there is something to draft from."""
        into = self._drafts(len(drafts))
        into.begin([draft.root for draft in drafts])
        if into.levels:
            first, *below = into.levels
            first.fill(root_logits(self._runner, drafts), noise)
            for level, nodes in zip(below, level_nodes(self.tree)[1:], strict=True):
                level.fill(node_logits(self._runner, drafts, level.fed(), [nodes] * len(drafts)), noise)
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
        fed = feed_indices(self.tree)
        for text, step in zip(texts, steps, strict=True):
            draft = self._texts[text]
            draft.accept(step, fed)
            if step.cut:  # something after the text is not finite
                draft.cache.zero_nodes()

    def end(self, text: int) -> None:
        self._texts.end(text)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on in all texts."""
        self.tree = tree


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
        new_drafts = partial(draft_models, model, min(capacity, model.config.max_positions), most)
        super().__init__(model, new_drafts, tree, rule=rule, sampling=sampling, max_nodes=most, pool=pool)
        self.model = model

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the draft model's logits (n, V) after each of some tokens, read as a text of their own."""
        (cache,) = self.model.new_caches(len(tokens), 1)
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.model.device)
        return self.model.forward([feed_text(cache, ids)]).logits

    def miss(self, text: int, step: Step) -> None:
        """Move on to a new root in a text where something else drafted: all of the step is to be read."""
        self._texts[text].accept(step, [NOT_FED] * (step.path[-1] + 1))


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a device: the same, or one seeded by it, because random numbers stay where they are drawn."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _internal_nodes(tree: TokenTree) -> int:
    return int(np.count_nonzero(tree.child_counts))
