"""An EAGLE head at one sequence: its KV cache, pending slots, and the feedback of the step's nodes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import HiddenStates, Output, SequenceInput, concatenate_states
from treeopt.runtime.models.nodes import PassNodes


class EagleSequence:
    """An EAGLE head at one sequence.

    Committed slots, one for every token but the first, always come from the target's hidden states: a step's drafted
    slots are dropped, and those of its accepted tokens are fed again (Li et al., 2025).  The root's slot is at
    `cache.length`, and the drafted nodes follow it.

    Args:
        head: the head.
        cache: with room for the longest sequence and all nodes fed in a step.
        nodes: nodes fed in a step, at most, the root included.
    """

    has_backlog = False
    feed_indices: Sequence[int] = ()
    """Not read: the slots of all accepted nodes are fed again."""

    def __init__(self, head: EagleHead, cache: KVCache, nodes: int) -> None:
        self.head = head
        self.cache = cache
        self.root = -1
        self._feedback = torch.zeros((nodes, head.config.hidden), dtype=head.dtype, device=head.device)
        """Of the nodes fed in this step, by feed index."""
        self._pending: list[tuple[HiddenStates, list[int]]] = []
        """Hidden states and following tokens of the slots that are not committed yet, the root's last."""
        self._root_fed = False

    @property
    def ready(self) -> bool:
        return bool(self._pending)

    @torch.inference_mode()
    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self.cache.clear()
        self.root = tokens[-1]
        self._pending, self._root_fed = [], False
        if states is not None:
            self.head.read(states, self._to_device(tokens[1:-1]), self.cache)
            self._pending = [(states.row(len(tokens) - 2), [self.root])]

    @staticmethod
    def feed_roots(sequences: "Sequence[EagleSequence]") -> list[SequenceInput]:
        head = sequences[0].head
        states = concatenate_states([states for sequence in sequences for states, _ in sequence._pending])
        tokens = [[token for _, following in sequence._pending for token in following] for sequence in sequences]
        fused = head.fuse(states).split([len(following) for following in tokens])
        return [
            SequenceInput(sequence.cache, sequence._to_device(following), PassNodes.chain(len(following)), x)
            for sequence, following, x in zip(sequences, tokens, fused, strict=True)
        ]

    def commit_fed(self, output: Output) -> None:
        self._store_feedback(0, output)
        self.commit_pending()

    def commit_pending(self) -> None:
        """Commit the slots of `feed_roots` but the root's, whose place the next pass may overwrite."""
        states, following = self._pending[-1]
        self.cache.length += sum(len(tokens) for _, tokens in self._pending) - 1
        self._pending = [(states.map(lambda layer: layer[-1:]), following[-1:])]
        self._root_fed = True

    def feed(self, tokens: Tensor, nodes: PassNodes) -> SequenceInput:
        """Return drafted nodes, each with the feedback of its parent."""
        return SequenceInput(self.cache, tokens, nodes, self._feedback[nodes.parents_on(self.head.device)])

    def store(self, nodes: PassNodes, output: Output) -> None:
        self._store_feedback(nodes.start, output)

    @torch.inference_mode()
    def accept(self, step: Step) -> None:
        """Move to the new root: the slots of the accepted tokens are pending, now with the target's hidden states."""
        assert step.states is not None  # heads request them
        if self._root_fed:
            self.cache.length += 1  # the root's slot came from the target's states already
            self._pending, self._root_fed = [], False
        path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
        self._pending.append((step.states.rows(path), step.tokens))
        self.root = step.tokens[-1]
        if step.truncated:  # the cache is not finite after the committed slots
            self.cache.zero_nodes()

    def _store_feedback(self, first: int, output: Output) -> None:
        assert output.states is not None  # heads return feedback
        assert output.states.last is not None
        self._feedback[first : first + len(output.states.last)] = output.states.last

    def _to_device(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64).to(self.head.device, non_blocking=True)


def new_eagle_sequences(head: EagleHead, capacity: int, nodes: int, sequences: int) -> list[EagleSequence]:
    """Return the state of a head for sequences of up to `capacity` tokens, with up to `nodes` nodes fed in a step."""
    return [EagleSequence(head, cache, nodes) for cache in new_caches(head, capacity + nodes, sequences)]
