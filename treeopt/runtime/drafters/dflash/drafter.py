"""Drafts a static tree from the marginals of one block."""

from collections.abc import Sequence
from functools import partial

import torch

from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.marginal_tree import MarginalTree
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import States
from treeopt.trees import TokenTree


class _Sequence:
    """The context of one sequence, its root, and the states that are not in the context yet."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.root = -1
        self.unread: States | None = None


class DFlashDrafter:
    """Drafts one tree in every step: its node of depth d and rank r carries the r-th likeliest token of the d-th slot.

    Args:
        head: of the target that verifies.
        tree: the shape, the same in every step.
        capacity: longest text.

    Raises InvalidValueError for a tree deeper than a block, or with more children of a node than the head knows tokens,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(self, head: DFlashHead, tree: TokenTree, *, capacity: int) -> None:
        self.head = head
        self.wants = head.wants
        self.max_tokens = tree.nodes
        self._texts = Texts(partial(_new_sequences, head, capacity))
        self.change_tree(tree)

    @property
    def tree(self) -> TokenTree:
        """The shape."""
        return self._tree.tree

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on in all texts."""
        head = self.head
        self._tree = MarginalTree(head.name, tree, levels=head.levels, tokens=head.tokens, device=head.device)

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        sequence = self._texts.begin(text)
        sequence.cache.clear()
        sequence.root, sequence.unread = tokens[-1], states

    def reserve(self, texts: int) -> None:
        self._texts.reserve(texts)

    @torch.inference_mode()
    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots, after the states of the last steps are read."""
        sequences = [self._texts[text] for text in texts]
        unread = [(sequence.unread, sequence.cache) for sequence in sequences if sequence.unread is not None]
        self.head.read([states for states, _ in unread], [cache for _, cache in unread])
        for sequence in sequences:
            sequence.unread = None
        roots = [sequence.root for sequence in sequences]
        logits, likeliest = self.head.draft(roots, [sequence.cache for sequence in sequences]).topk(self._tree.count)
        return self._tree.proposals(roots, logits[..., 0], likeliest)

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        """Move on to new roots: the states of the old root and of the accepted nodes join the context."""
        for text, step in zip(texts, steps, strict=True):
            assert step.states is not None  # the head wants them
            sequence = self._texts[text]
            path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
            sequence.root, sequence.unread = step.tokens[-1], step.states.rows(path)

    def end(self, text: int) -> None:
        self._texts.end(text)


def _new_sequences(head: DFlashHead, capacity: int, sequences: int) -> list[_Sequence]:
    return [_Sequence(cache) for cache in new_caches(head, capacity, sequences)]
