"""What drafters keep of texts: an object for each, used again for another text once its own has ended."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Texts(Generic[Kept]):
    """Objects of texts that are decoded now, by the texts' numbers.

    Args:
        make: makes so many, which lie side by side; the first is made at once.
    """

    def __init__(self, make: Callable[[int], Sequence[Kept]]) -> None:
        self._make = make
        self._numbers = count()
        self._free: list[tuple[int, Kept]] = []  # a heap: neighbours are taken one after the other
        self._taken: dict[int, tuple[int, Kept]] = {}
        self._add(1)

    def begin(self, text: int) -> Kept:
        """Return an object for a text that begins, or begins anew."""
        self.end(text)
        if not self._free:
            self._add(1)
        self._taken[text] = heappop(self._free)
        return self._taken[text][1]

    def __getitem__(self, text: int) -> Kept:
        return self._taken[text][1]

    def end(self, text: int) -> None:
        """Take back the object of a text, if it has one."""
        if text in self._taken:
            heappush(self._free, self._taken.pop(text))

    def reserve(self, texts: int) -> None:
        """Have free objects for so many texts; where there are fewer, or more than twice as many, new ones replace them.

        New ones are next to each other in memory.
        """
        if not texts <= len(self._free) <= 2 * texts:
            self._free.clear()
            self._add(texts)

    @property
    def free(self) -> int:
        """How many objects no text has."""
        return len(self._free)

    def __iter__(self) -> Iterator[Kept]:
        """Yield all objects, those that no text has included."""
        yield from (each for _, each in (*self._free, *self._taken.values()))

    def _add(self, texts: int) -> None:
        for each in self._make(texts):
            heappush(self._free, (next(self._numbers), each))
