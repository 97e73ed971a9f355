"""Static trees from one DFlash block: from its marginal distributions, or level by level with a Markov head."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.dflash.markov import MarkovTree
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.heads import MarginalTree, check_tree
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees import TokenTree

FillTree = Callable[[Sequence[int], Tensor], list[Proposal]]
"""From n roots and the logits (n, levels, V) of their blocks to the trees below the roots."""


class _Sequence:
    """The context cache of one sequence, its root, and the hidden states that are not in the context yet."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.root = -1
        self.unread: HiddenStates | None = None


class DFlashDrafter:
    """Drafts a static tree: the node of depth d and rank r has the r-th most likely token of the d-th slot.

    With a Markov head, it has the r-th most likely token after its parent's.

    Args:
        head: of the target that verifies.
        tree: the tree.
        capacity: longest sequence.

    Raises InvalidValueError for a tree deeper than a block, or with more children of a node than the head predicts tokens,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(self, head: DFlashHead, tree: TokenTree, *, capacity: int) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self.max_tokens = tree.nodes
        self._sequences = SequencePool(partial(_new_sequences, head, capacity))
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self._fill = tree_filler(self.head, tree)
        self.tree = tree

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        new = self._sequences.acquire(sequence)
        new.cache.clear()
        new.root, new.unread = tokens[-1], states

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    @torch.inference_mode()
    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Read the hidden states of the last steps into the contexts, and return the trees below the roots."""
        batch = [self._sequences[sequence] for sequence in sequences]
        unread = [(sequence.unread, sequence.cache) for sequence in batch if sequence.unread is not None]
        self.head.read([states for states, _ in unread], [cache for _, cache in unread])
        for sequence in batch:
            sequence.unread = None
        roots = [sequence.root for sequence in batch]
        return self._fill(roots, self.head.draft(roots, [sequence.cache for sequence in batch]))

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots; the hidden states of the accepted path are unread."""
        for number, step in zip(sequences, steps, strict=True):
            assert step.states is not None  # heads request them
            sequence = self._sequences[number]
            path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
            sequence.root, sequence.unread = step.tokens[-1], step.states.rows(path)

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)


def tree_filler(head: DFlashHead, tree: TokenTree) -> FillTree:
    """Return the function that fills a tree; raises as `DFlashDrafter`."""
    if head.markov is not None:
        check_tree(head.name, tree, levels=head.levels, tokens=head.tokens)
        return MarkovTree(head.name, tree, head.markov).fill
    marginals = MarginalTree(head.name, tree, levels=head.levels, tokens=head.tokens, device=head.device)

    def fill(roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        largest, likeliest = logits.topk(marginals.count)
        return marginals.fill(roots, largest[..., 0], likeliest)

    return fill


def _new_sequences(head: DFlashHead, capacity: int, sequences: int) -> list[_Sequence]:
    return [_Sequence(cache) for cache in new_caches(head, capacity, sequences)]
