"""What drafters share that keep a state for each sequence, such as a KV cache, and draft a batch in one call."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import compress, count
from typing import Generic, Protocol, TypeVar

import torch

from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step
from treeopt.runtime.models.model import NO_STATES, HiddenStates, RequestedStates


class SequenceState(Protocol):
    """What a drafter keeps of one sequence; `begin` reuses it for the next."""

    @property
    def ready(self) -> bool:
        """Whether it can draft: a head needs a token before the root, a model has a longest sequence."""

    @property
    def root(self) -> int:
        """The last committed token."""

    def begin(self, tokens: Sequence[int], states: HiddenStates | None) -> None:
        """Begin a sequence, as `Drafter.begin`."""

    def accept(self, step: Step) -> None:
        """Move to the new root."""


State = TypeVar("State", bound=SequenceState)
Pooled = TypeVar("Pooled")


class SequencePool(Generic[Pooled]):
    """One state object for each sequence that is being decoded; `make` makes several next to each other in memory."""

    def __init__(self, make: Callable[[int], Sequence[Pooled]]) -> None:
        self._make = make
        self._order = count()
        self._free: list[tuple[int, Pooled]] = []  # a heap, so that neighbours in memory are taken one after the other
        self._used: dict[int, tuple[int, Pooled]] = {}
        self._grow(1)

    def acquire(self, sequence: int) -> Pooled:
        """Return a state for a sequence that begins or restarts; it is whatever its last user left."""
        self.release(sequence)
        if not self._free:
            self._grow(1)
        self._used[sequence] = heappop(self._free)
        return self[sequence]

    def __getitem__(self, sequence: int) -> Pooled:
        return self._used[sequence][1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._used)

    def release(self, sequence: int) -> None:
        """Take back the state of a sequence, if it has one."""
        if sequence in self._used:
            heappush(self._free, self._used.pop(sequence))

    def reserve(self, sequences: int) -> None:
        """Have `sequences` free states; if there are fewer, or more than twice as many, replace them by new ones."""
        if not sequences <= len(self._free) <= 2 * sequences:
            self._free.clear()
            self._grow(sequences)

    @property
    def free(self) -> int:
        """Number of states that no sequence uses."""
        return len(self._free)

    def _grow(self, states: int) -> None:
        for state in self._make(states):
            heappush(self._free, (next(self._order), state))


class SequenceDrafter(Generic[State]):
    """A drafter with a state for each sequence; subclasses set `max_tokens` and define `_fill`."""

    sampled: bool = False
    requested_states: RequestedStates = NO_STATES
    capacity: int | None = None
    """Longest sequence that its caches have room for; None for any."""

    def __init__(self, new_sequences: Callable[[int], Sequence[State]]) -> None:
        self._sequences = SequencePool(new_sequences)

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None = None) -> None:
        self._sequences.acquire(sequence).begin(tokens, states)

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    @torch.inference_mode()
    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator] = ()) -> list[Proposal]:
        """Return the drafts of a batch, by one call of `_fill`; the root alone for sequences that are not ready.

        The next call may overwrite them.
        """
        states = [self._sequences[sequence] for sequence in sequences]
        ready = [state.ready for state in states]
        proposals = iter(
            self._fill(list(compress(states, ready)), list(compress(generators, ready))) if any(ready) else ()
        )
        return [next(proposals) if state.ready else Proposal(ROOT_ONLY, torch.tensor([state.root])) for state in states]

    @torch.inference_mode()
    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        for sequence, step in zip(sequences, steps, strict=True):
            self._sequences[sequence].accept(step)

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)

    def _fill(self, states: Sequence[State], generators: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the drafts of sequences that are ready, at least one."""
        raise NotImplementedError
