"""Drafters with a DFlash head: static trees from one block, and trees that are built in every step (DDTree).

A static tree is filled from the block's marginal distributions, or level by level with a Markov head.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters.dflash.head import DFlashHead, concatenate_layers
from treeopt.runtime.drafters.draft_levels import LevelSampler, draft_levels
from treeopt.runtime.drafters.draft_model import top_children
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step, intern_tree
from treeopt.runtime.drafters.heads import FillTree, check_tree, marginal_filler
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, SequenceInput
from treeopt.runtime.models.runner import Runner, make_graph_pool
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DDTreeSetting


class DFlashSequence:
    """The context cache of one sequence, its root, and the concatenated states that are not in the context yet."""

    ready = True

    def __init__(self, head: DFlashHead, cache: KVCache) -> None:
        self.head = head
        self.cache = cache
        self.root = -1
        self.unread = head.no_states

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self.cache.clear()
        self.root, self.unread = tokens[-1], self.head.no_states
        if states is not None:
            self.head.read(states, self.cache)

    def commit_unread(self) -> None:
        self.cache.length += len(self.unread)
        self.unread = self.head.no_states

    def accept(self, step: Step) -> None:
        """Move to the new root; the hidden states of the accepted path are unread."""
        assert step.states is not None  # heads request them
        path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
        self.root, self.unread = step.tokens[-1], concatenate_layers(step.states.rows(path))
        if step.truncated:  # the cache is not finite after the context
            self.cache.zero_nodes()


class BlockDrafter(SequenceDrafter[DFlashSequence]):
    """Base of drafters with a DFlash head; arguments and errors are those of `DFlashDrafter`."""

    def __init__(self, head: DFlashHead, capacity: int, cuda_graphs: bool | None = None) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self.capacity = capacity
        self._runner = make_block_runner(head, cuda_graphs)
        super().__init__(
            lambda sequences: [DFlashSequence(head, cache) for cache in new_caches(head, capacity, sequences)]
        )

    def _draft_blocks(self, sequences: Sequence[DFlashSequence]) -> tuple[list[int], Tensor]:
        """Return the root of each sequence, and the logits (sequences, levels, V) of a block after it.

        The pass reads the hidden states of the last steps into the contexts.  The next one overwrites the logits.
        """
        inputs = [self.head.feed_block(sequence.root, sequence.unread, sequence.cache) for sequence in sequences]
        logits = run_blocks(self._runner, inputs, self.head.levels)
        for sequence in sequences:
            sequence.commit_unread()
        return [sequence.root for sequence in sequences], logits


class DFlashDrafter(BlockDrafter):
    """Drafts a static tree: the node of depth d and rank r has the r-th most likely token of the d-th slot.

    With a Markov head, it has the r-th most likely token after its parent's.

    Args:
        head: of the target that verifies.
        tree: the tree.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for a tree deeper than a block, or with more children of a node than the head predicts tokens,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(self, head: DFlashHead, tree: TokenTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        super().__init__(head, capacity, cuda_graphs)
        self.max_tokens = tree.nodes
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self._fill_tree = tree_filler(self.head, tree)
        self.tree = tree

    def _fill(self, sequences: Sequence[DFlashSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return self._fill_tree(*self._draft_blocks(sequences))


class DDTreeDrafter(BlockDrafter):
    """Drafts the `budget` - 1 most probable paths under the product of the slots' marginals, at temperature 1.

    The trees are built on the host: every step copies the top tokens of all slots and sequences there, once.  The
    setting has the budget; other arguments are those of `DFlashDrafter`.

    Raises OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(
        self, head: DFlashHead, setting: DDTreeSetting, *, capacity: int, cuda_graphs: bool | None = None
    ) -> None:
        super().__init__(head, capacity, cuda_graphs)
        from treeopt.runtime.drafters.dflash import best_first  # numba is slow to import

        self.setting, self.max_tokens = setting, setting.max_nodes
        self._top_tokens = min(setting.max_children, head.tokens)
        self._grow_trees = best_first.grow_trees
        self._grow_trees(np.zeros((1, 1, 1)), np.ones(1, np.int64))  # compiles before the first step

    def _fill(self, sequences: Sequence[DFlashSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone if a slot's distribution is not finite."""
        roots, logits = self._draft_blocks(sequences)
        top = top_children(logits, self._top_tokens)
        log_probs, tokens = torch.stack([values.double() for values in top]).cpu().numpy()  # 53 bits hold any token
        finite = np.isfinite(log_probs[..., 0]).all(axis=1)
        parents, indices, counts = self._grow_trees(log_probs, np.where(finite, self.setting.budget, 1))
        drafted = np.take_along_axis(tokens.reshape(len(roots), -1), indices, axis=1).astype(np.int64)
        drafted[:, 0] = roots
        return [
            Proposal(intern_tree(tuple(tree[:count])), torch.from_numpy(nodes[:count]))
            if is_finite
            else Proposal(ROOT_ONLY, torch.from_numpy(nodes[:1]), scores=Scores.missing(self.head.name))
            for tree, nodes, count, is_finite in zip(
                parents.tolist(), drafted, counts.tolist(), finite.tolist(), strict=True
            )
        ]


def tree_filler(head: DFlashHead, tree: TokenTree) -> FillTree:
    """Return the function that fills a tree; raises as `DFlashDrafter`."""
    if head.markov is None:
        return marginal_filler(head, tree)
    check_tree(head, tree)
    markov, levels = head.markov, draft_levels(tree, head.device)
    sampler = LevelSampler(head, rule=RULES["target"], sampling=GREEDY, max_nodes=tree.nodes)

    @torch.inference_mode()
    def fill(roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        sampler.begin(tree, roots)
        for depth, level in enumerate(levels):
            sampler.fill(level, logits[:, depth, None] + markov.bias(sampler.tokens_of(level)), ())
        return sampler.proposals()

    return fill


def make_block_runner(head: DFlashHead, cuda_graphs: bool | None = None) -> Runner:
    """Return what runs the passes of a head; `cuda_graphs` as for `BlockDrafter`."""
    return Runner(head, max_nodes=head.max_rows, pool=make_graph_pool(head.device, cuda_graphs))


def run_blocks(runner: Runner, inputs: Sequence[SequenceInput], levels: int) -> Tensor:
    """Return the logits (sequences, levels, V) of a pass over inputs from `DFlashHead.feed_block`."""
    outputs = runner.forward(inputs)
    if len(outputs.logits) == len(inputs) * levels:
        return outputs.logits.view(len(inputs), levels, -1)
    return torch.stack([output.logits[-levels:] for output in outputs])
