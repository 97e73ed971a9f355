"""The state of sequences that a DFlash head drafts for: context cache, root, and hidden states that were not read."""

from collections.abc import Sequence
from functools import partial

import torch

from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates


class _Sequence:
    """The context cache of one sequence, its root, and the hidden states that are not in the context yet."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.root = -1
        self.unread: HiddenStates | None = None


class BlockDrafter:
    """What drafters with a DFlash head share: all methods of `Drafter` but `propose`.

    Args:
        head: of the target that verifies.
        capacity: longest sequence.

    Raises OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(self, head: DFlashHead, capacity: int) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self._sequences = SequencePool(partial(_new_sequences, head, capacity))

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        new = self._sequences.acquire(sequence)
        new.cache.clear()
        new.root, new.unread = tokens[-1], states

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    def read_contexts(self, sequences: Sequence[int]) -> tuple[list[int], list[KVCache]]:
        """Read the hidden states of the last steps into the contexts, and return roots and contexts."""
        batch = [self._sequences[sequence] for sequence in sequences]
        unread = [(sequence.unread, sequence.cache) for sequence in batch if sequence.unread is not None]
        self.head.read([states for states, _ in unread], [cache for _, cache in unread])
        for sequence in batch:
            sequence.unread = None
        return [sequence.root for sequence in batch], [sequence.cache for sequence in batch]

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
