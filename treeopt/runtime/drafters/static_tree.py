"""Static trees: a draft model fills the same tree in every step, level by level, by passes over its internal nodes."""

from collections.abc import Sequence

import torch

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import TreeDraft
from treeopt.runtime.drafters.draft_model import DraftModel
from treeopt.runtime.drafters.drafter import NOTHING, Proposal, Scores, States, Step
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.graphs import GraphPool, passes_over
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree


class StaticTreeDrafter:
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

    wants = NOTHING

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
        self.model = model
        self.tree = tree
        self.max_tokens = tree.nodes if max_nodes is None else max_nodes
        self.sampled = rule.random_drafts
        self._rule = rule
        self._sampling = sampling
        self._capacity = capacity
        self._pool = pool
        self._texts = Texts(self._new_text)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree from the next step on, in all texts."""
        self.tree = tree
        for filled in self._texts:
            filled.take(tree)

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:  # noqa: ARG002
        """See `Drafter`."""
        self._texts.begin(text).draft.begin(tokens)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots, in buffers that the next call writes over."""
        return [self._texts[text].propose(generator) for text, generator in zip(texts, noise, strict=True)]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """See `Drafter`."""
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].accept(step)

    def end(self, text: int) -> None:
        """See `Drafter`."""
        self._texts.end(text)

    def _new_text(self) -> "_FilledTree":
        cache = self.model.new_cache(self._capacity + self.max_tokens)
        passes = passes_over(self.model, cache, capacity=self._capacity, max_nodes=self.max_tokens, pool=self._pool)
        return _FilledTree(DraftModel(self.model, cache, passes), self.tree, self._rule, self._sampling)


class _FilledTree:
    """The tree of one text and the draft model that fills it."""

    def __init__(self, draft: DraftModel, tree: TokenTree, rule: Rule, sampling: Sampling) -> None:
        self.draft = draft
        self._rule = rule
        self._sampling = sampling
        self.take(tree)

    def take(self, tree: TokenTree) -> None:
        """Fill another tree from the next step on."""
        model = self.draft.model
        self._tree = tree
        self._into = TreeDraft(
            tree,
            self.draft.passes,
            rule=self._rule,
            sampling=self._sampling,
            vocabulary=model.config.vocabulary,
            device=model.device,
        )
        self._fed: list[int] = self._into.fed.tolist()

    def propose(self, noise: torch.Generator) -> Proposal:
        """Return the tree below the root; the root alone is no work for the draft model."""
        into = self._into
        into.root.fill_(self.draft.root)
        if into.levels:
            into.fill_noise(noise)
            first, *below = into.levels
            first.children.copy_(first.sample(self.draft.feed_root(), noise))
            for level in below:
                level.children.copy_(level.sample(level.run(level.fed.read()).logits, noise))
        scores = Scores(self.draft.model.name, into.scores, into.scored)
        return Proposal(self._tree, into.tokens, into.probs, scores=scores)

    def accept(self, step: Step) -> None:
        """Move on to a new root, and forget what is not finite behind the text where the draft was cut for it."""
        self.draft.accept(step.path, step.tokens, self._fed)
        if step.cut:
            self.draft.passes.clean()
