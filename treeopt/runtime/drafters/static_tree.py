"""Static trees: a draft model fills the same tree in every step, level by level."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeBatch, feed_indices, level_passes
from treeopt.runtime.drafters.draft_model import (
    DraftSequence,
    NewSequences,
    new_model_sequences,
    node_logits,
    propose_ready,
    root_logits,
)
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import (
    NO_STATES,
    ForwardModel,
    HiddenStates,
    LanguageModel,
    RequestedStates,
    SequenceInput,
)
from treeopt.runtime.models.nodes import NOT_FED
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.runtime.rules import Rule
from treeopt.trees import TokenTree

CACHED_TREES = 8
"""Trees whose samplers are kept."""


class LevelDrafter:
    """Drafts a static tree with a draft model or a head: one pass over the internal nodes of each level.

    Args:
        model: a draft model, or a head on the target.
        new_sequences: makes its state for several sequences.
        tree: the tree.
        rule: verification rule, which determines how children are sampled.
        sampling: what children are sampled from; greedy takes the top tokens, whatever the rule.
        max_nodes: nodes of the largest tree.
        requested_states: hidden states of the target that the head reads.
        pool: CUDA graph pool, or None to run passes without graphs.
    """

    def __init__(
        self,
        model: ForwardModel,
        new_sequences: NewSequences,
        tree: TokenTree,
        *,
        rule: Rule,
        sampling: Sampling,
        max_nodes: int,
        requested_states: RequestedStates = NO_STATES,
        pool: GraphPool | None = None,
    ) -> None:
        self.change_tree(tree)
        self._runner = Runner(model, max_nodes=max_nodes, pool=pool)
        self.max_tokens = max_nodes
        self.sampled = rule.random_drafts
        self.requested_states = requested_states
        self._name, self._device = model.name, model.device
        self._new_buffers = partial(
            DraftBuffers,
            nodes=max_nodes,
            rule=rule,
            sampling=sampling,
            vocabulary=model.config.vocabulary,
            device=model.device,
        )
        self._buffers = self._new_buffers(1, internal=self._internal)
        self._new_batch = lru_cache(maxsize=CACHED_TREES)(TreeBatch)
        self._last = self._new_batch(tree, 1, self._buffers)
        self._sequences = SequencePool(new_sequences)

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self._sequences.acquire(sequence).begin(tokens, states)

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    @torch.inference_mode()
    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots, in buffers that the next call overwrites."""
        drafts = [self._sequences[sequence] for sequence in sequences]
        if self.sampled:
            generators = [generator_on(self._device, generator) for generator in generators]
        return propose_ready(
            drafts, lambda ready: self._fill([drafts[index] for index in ready], [generators[index] for index in ready])
        )

    def _fill(self, drafts: Sequence[DraftSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:
        """Fill the tree below each root, one level and one draft pass after the other."""
        batch = self._batch(len(drafts))
        batch.begin([draft.root for draft in drafts])
        if batch.levels:
            first, *below = batch.levels
            first.fill(root_logits(self._runner, drafts), generators)
            for level, nodes in zip(below, level_passes(self.tree)[1:], strict=True):
                logits = node_logits(self._runner, drafts, level.fed_tokens(), [nodes] * len(drafts))
                level.fill(logits, generators)
        return [
            Proposal(self.tree, tokens, probs, scores=Scores(self._name, scores, batch.scored_nodes))
            for tokens, probs, scores in zip(batch.tokens, batch.probs, batch.scores, strict=True)
        ]

    def _batch(self, sequences: int) -> TreeBatch:
        buffers = self._buffers
        if sequences > buffers.sequences or self._internal > buffers.internal:
            self._new_batch.cache_clear()
            self._buffers = self._new_buffers(
                max(sequences, buffers.sequences), internal=max(self._internal, buffers.internal)
            )
        batch = self._new_batch(self.tree, sequences, self._buffers)
        if batch is not self._last:
            batch.clear()  # only now: the proposals of the last tree are valid until the next ones
            self._last = batch
        return batch

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        indices = feed_indices(self.tree)
        for sequence, step in zip(sequences, steps, strict=True):
            self._sequences[sequence].accept(step, indices)

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self.tree, self._internal = tree, int(np.count_nonzero(tree.child_counts))


class StaticTreeDrafter(LevelDrafter):
    """Drafts a static tree with a small model that shares the target's vocabulary.

    Args:
        model: the draft model.
        tree: the tree.
        rule: verification rule, which determines how children are sampled.
        sampling: what children are sampled from; greedy takes the top tokens, whatever the rule.
        capacity: longest sequence; beyond what the model takes, nothing is drafted.
        max_nodes: nodes of the largest tree; by default this tree's.
        pool: CUDA graph pool, or None to run passes without graphs.
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
        max_nodes = tree.nodes if max_nodes is None else max_nodes
        new_sequences = partial(new_model_sequences, model, min(capacity, model.config.max_positions), max_nodes)
        super().__init__(model, new_sequences, tree, rule=rule, sampling=sampling, max_nodes=max_nodes, pool=pool)
        self.model = model

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the draft model's logits (n, V) after each token of a new sequence."""
        (cache,) = self.model.new_caches(len(tokens), 1)
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.model.device)
        return self.model.forward([SequenceInput.causal(cache, ids)]).logits

    def skip(self, sequence: int, step: Step) -> None:
        """Move a sequence to its new root after a step of another drafter, whose tokens are all unread."""
        self._sequences[sequence].accept(step, [NOT_FED] * (step.path[-1] + 1))


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator on a device: the same one, or one seeded by it."""
    if generator.device == device:
        return generator
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))
