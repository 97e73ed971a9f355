"""Static trees from the marginal distributions of one DFlash block."""

from collections.abc import Sequence
from functools import partial

import torch

from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.heads import MarginalTree
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees import TokenTree


class _Sequence:
    """The context cache of one sequence, its root, and the hidden states that are not in the context yet."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.root = -1
        self.unread: HiddenStates | None = None


class DFlashDrafter:
    """Drafts a static tree: the node of depth d and rank r has the r-th most likely token of the d-th slot.

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

    @property
    def tree(self) -> TokenTree:
        return self._tree.tree

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        head = self.head
        self._tree = MarginalTree(head.name, tree, levels=head.levels, tokens=head.tokens, device=head.device)

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
        logits, likeliest = self.head.draft(roots, [sequence.cache for sequence in batch]).topk(self._tree.count)
        return self._tree.fill(roots, logits[..., 0], likeliest)

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots; the hidden states of the accepted path are unread."""
        for number, step in zip(sequences, steps, strict=True):
            assert step.states is not None  # heads request them
            sequence = self._sequences[number]
            path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
            sequence.root, sequence.unread = step.tokens[-1], step.states.rows(path)

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)


def _new_sequences(head: DFlashHead, capacity: int, sequences: int) -> list[_Sequence]:
    return [_Sequence(cache) for cache in new_caches(head, capacity, sequences)]
