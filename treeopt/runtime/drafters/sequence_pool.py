"""Per-sequence state, such as KV caches, reused from one sequence to the next."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

State = TypeVar("State")


class SequencePool(Generic[State]):
    """One state object for each sequence that is being decoded, by the sequence's number.

    Args:
        make: makes that many states next to each other in memory; the first is made at once.
    """

    def __init__(self, make: Callable[[int], Sequence[State]]) -> None:
        self._make = make
        self._order = count()
        self._free: list[tuple[int, State]] = []  # a heap, so that neighbours in memory are taken one after the other
        self._used: dict[int, tuple[int, State]] = {}
        self._grow(1)

    def acquire(self, sequence: int) -> State:
        """Return a state for a sequence that begins or restarts; it is whatever its last user left."""
        self.release(sequence)
        if not self._free:
            self._grow(1)
        self._used[sequence] = heappop(self._free)
        return self[sequence]

    def __getitem__(self, sequence: int) -> State:
        return self._used[sequence][1]

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

    def __iter__(self) -> Iterator[State]:
        """Yield all states, free ones included."""
        yield from (state for _, state in (*self._free, *self._used.values()))

    def _grow(self, states: int) -> None:
        for state in self._make(states):
            heappush(self._free, (next(self._order), state))
