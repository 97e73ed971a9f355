"""The state of sequences that a DFlash head drafts for: context cache, root, and hidden states that were not read."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from treeopt.runtime.drafters.dflash.head import DFlashHead, concatenate_layers
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, SequenceInput
from treeopt.runtime.models.runner import Runner, make_graph_pool


class _Sequence:
    """The context cache of one sequence, its root, and the concatenated states that are not in the context yet."""

    def __init__(self, cache: KVCache, nothing_unread: Tensor) -> None:
        self.cache = cache
        self.root = -1
        self.unread = self.nothing_unread = nothing_unread

    def commit_unread(self) -> None:
        self.cache.length += len(self.unread)
        self.unread = self.nothing_unread


class BlockDrafter:
    """What drafters with a DFlash head share: all methods of `Drafter` but `propose`.

    Args:
        head: of the target that verifies.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(self, head: DFlashHead, capacity: int, cuda_graphs: bool | None = None) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self._runner = make_block_runner(head, cuda_graphs)
        self._sequences = SequencePool(partial(_new_sequences, head, capacity))

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        new = self._sequences.acquire(sequence)
        new.cache.clear()
        new.root, new.unread = tokens[-1], new.nothing_unread
        if states is not None:
            self.head.read([states], [new.cache])

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    def draft_blocks(self, sequences: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return the root of each sequence, and the logits (sequences, levels, V) of a block after it.

        The pass reads the hidden states of the last steps into the contexts.  The next one overwrites the logits.
        """
        batch = [self._sequences[sequence] for sequence in sequences]
        inputs = [self.head.feed_block(sequence.root, sequence.unread, sequence.cache) for sequence in batch]
        logits = run_blocks(self._runner, inputs, self.head.levels)
        for sequence in batch:
            sequence.commit_unread()
        return [sequence.root for sequence in batch], logits

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots; the hidden states of the accepted path are unread."""
        for number, step in zip(sequences, steps, strict=True):
            assert step.states is not None  # heads request them
            sequence = self._sequences[number]
            path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
            sequence.root, sequence.unread = step.tokens[-1], concatenate_layers(step.states.rows(path))
            if step.truncated:  # the cache is not finite after the context
                sequence.cache.zero_nodes()

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)


def make_block_runner(head: DFlashHead, cuda_graphs: bool | None = None) -> Runner:
    """Return what runs the passes of a head; `cuda_graphs` as for `BlockDrafter`."""
    return Runner(head, max_nodes=head.max_rows, pool=make_graph_pool(head.device, cuda_graphs))


def run_blocks(runner: Runner, inputs: Sequence[SequenceInput], levels: int) -> Tensor:
    """Return the logits (sequences, levels, V) of a pass over inputs from `DFlashHead.feed_block`."""
    outputs = runner.forward(inputs)
    if len(outputs.logits) == len(inputs) * levels:
        return outputs.logits.view(len(inputs), levels, -1)
    return torch.stack([output.logits[-levels:] for output in outputs])


def _new_sequences(head: DFlashHead, capacity: int, sequences: int) -> list[_Sequence]:
    nothing_unread = head.no_states
    return [_Sequence(cache, nothing_unread) for cache in new_caches(head, capacity, sequences)]
