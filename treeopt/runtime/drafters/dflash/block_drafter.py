"""The state of sequences that a DFlash head drafts for: context cache, root, and hidden states that were not read."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from treeopt.runtime.drafters.dflash.head import DFlashHead, concatenate_layers
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, SequenceInput
from treeopt.runtime.models.runner import Runner, make_graph_pool


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
            self.head.read([states], [self.cache])

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
    """What drafters with a DFlash head share.

    Args:
        head: of the target that verifies.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(self, head: DFlashHead, capacity: int, cuda_graphs: bool | None = None) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self._runner = make_block_runner(head, cuda_graphs)
        super().__init__(partial(_new_sequences, head, capacity))

    def _draft_blocks(self, sequences: Sequence[DFlashSequence]) -> tuple[list[int], Tensor]:
        """Return the root of each sequence, and the logits (sequences, levels, V) of a block after it.

        The pass reads the hidden states of the last steps into the contexts.  The next one overwrites the logits.
        """
        inputs = [self.head.feed_block(sequence.root, sequence.unread, sequence.cache) for sequence in sequences]
        logits = run_blocks(self._runner, inputs, self.head.levels)
        for sequence in sequences:
            sequence.commit_unread()
        return [sequence.root for sequence in sequences], logits


def make_block_runner(head: DFlashHead, cuda_graphs: bool | None = None) -> Runner:
    """Return what runs the passes of a head; `cuda_graphs` as for `BlockDrafter`."""
    return Runner(head, max_nodes=head.max_rows, pool=make_graph_pool(head.device, cuda_graphs))


def run_blocks(runner: Runner, inputs: Sequence[SequenceInput], levels: int) -> Tensor:
    """Return the logits (sequences, levels, V) of a pass over inputs from `DFlashHead.feed_block`."""
    outputs = runner.forward(inputs)
    if len(outputs.logits) == len(inputs) * levels:
        return outputs.logits.view(len(inputs), levels, -1)
    return torch.stack([output.logits[-levels:] for output in outputs])


def _new_sequences(head: DFlashHead, capacity: int, sequences: int) -> list[DFlashSequence]:
    return [DFlashSequence(head, cache) for cache in new_caches(head, capacity, sequences)]
