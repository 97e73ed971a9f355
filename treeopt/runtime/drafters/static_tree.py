"""Static trees, the same in every step: filled level by level by a draft model or a head, or the root of plain decoding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters.draft_levels import LevelSampler, draft_levels, feed_indices
from treeopt.runtime.drafters.draft_model import (
    DraftModel,
    DraftSequence,
    NodeDrafter,
    check_drafted,
    node_logits,
    root_logits,
)
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates, SequenceInput
from treeopt.runtime.models.nodes import NOT_FED
from treeopt.runtime.models.runner import GraphPool
from treeopt.runtime.rules import RULES, Rule
from treeopt.trees import TokenTree


class StaticTreeDrafter(NodeDrafter):
    """Drafts a static tree with one pass over the internal nodes of each level.

    The child of rank k has the k-th most likely token after its parent's path, unless the rule needs sampled children.

    Args:
        model: a draft model that shares the target's vocabulary, or a head on the target, such as an EAGLE head.
        tree: the tree.
        capacity: longest sequence; beyond what the model takes, nothing is drafted.
        rule: verification rule, which determines how children are sampled.
        sampling: what children are sampled from; greedy takes the top tokens, whatever the rule.
        max_nodes: nodes of the largest tree; by default this tree's.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.
        pool: CUDA graph pool to share; by default one of its own.

    Raises InvalidValueError for more children of a node than the model predicts tokens, OutOfMemoryError for a cache that
    does not fit into memory.
    """

    def __init__(
        self,
        model: DraftModel,
        tree: TokenTree,
        *,
        capacity: int,
        rule: Rule = RULES["target"],
        sampling: Sampling = GREEDY,
        max_nodes: int | None = None,
        cuda_graphs: bool | None = None,
        pool: GraphPool | None = None,
    ) -> None:
        self.model = model
        self.change_tree(tree)
        self.max_tokens = tree.nodes if max_nodes is None else max_nodes
        self.sampled = rule.random_drafts
        self._sampler = LevelSampler(model, rule=rule, sampling=sampling, max_nodes=self.max_tokens)
        super().__init__(model, capacity=capacity, max_fed=self.max_tokens, cuda_graphs=cuda_graphs, pool=pool)

    def _fill(self, drafts: Sequence[DraftSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:
        if self.sampled:
            generators = [generator_on(self.model.device, generator) for generator in generators]
        sampler = self._sampler
        sampler.begin(self.tree, [draft.root for draft in drafts])
        for depth, level in enumerate(draft_levels(self.tree, self.model.device)):
            if depth == 0:
                logits = root_logits(self._runner, drafts)
            else:
                tokens = sampler.tokens_of(level).unbind()
                logits = node_logits(self._runner, drafts, tokens, [level.fed] * len(drafts))
            sampler.fill(level, logits, generators)
        for draft in drafts:
            draft.feed_indices = feed_indices(self.tree)
        return sampler.proposals()

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on; raises as for the first tree."""
        check_drafted("tree", self.model, children=int(tree.child_counts.max()), levels=tree.max_depth)
        self.tree = tree

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the draft model's logits (n, V) after each token of a new sequence."""
        (cache,) = self.model.new_caches(len(tokens), 1)
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.model.device)
        return self.model.forward([SequenceInput.causal(cache, ids)]).logits

    def skip(self, sequence: int, step: Step) -> None:
        """Move a sequence to its new root after a step of another drafter, whose tokens are all unread."""
        draft = self._sequences[sequence]
        draft.feed_indices = [NOT_FED] * (step.path[-1] + 1)
        draft.accept(step)


class RootSequence:
    """The last committed token of a sequence."""

    ready = False
    root = -1

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:  # noqa: ARG002
        self.root = tokens[-1]

    def accept(self, step: Step) -> None:
        self.root = step.tokens[-1]


class PlainDrafter(SequenceDrafter[RootSequence]):
    """Drafts nothing: the static tree of plain decoding is the root alone."""

    max_tokens = 1
    tree = ROOT_ONLY

    def __init__(self) -> None:
        super().__init__(lambda sequences: [RootSequence() for _ in range(sequences)])

    def skip(self, sequence: int, step: Step) -> None:
        self._sequences[sequence].accept(step)

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes == 1  # the decoder checks trees


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a device: the same one, or one seeded by it."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))
