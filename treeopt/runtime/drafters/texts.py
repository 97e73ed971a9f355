"""What drafters keep of texts: an object for each, used again for another text once its own has ended."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Texts(Generic[Kept]):
    """Objects of texts that are decoded now, by the texts' numbers.

    Args:
        make: makes one; the first is made at once.
    """

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make = make
        self._free = [make()]
        self._taken: dict[int, Kept] = {}

    def begin(self, text: int) -> Kept:
        """Return an object for a text that begins, or begins anew."""
        self.end(text)
        self._taken[text] = self._free.pop() if self._free else self._make()
        return self._taken[text]

    def __getitem__(self, text: int) -> Kept:
        return self._taken[text]

    def end(self, text: int) -> None:
        """Take back the object of a text, if it has one."""
        if text in self._taken:
            self._free.append(self._taken.pop(text))

    def __len__(self) -> int:
        """Return how many objects there are, those that no text has included."""
        return len(self._free) + len(self._taken)

    def __iter__(self) -> Iterator[Kept]:
        """Yield all objects, those that no text has included."""
        yield from (*self._free, *self._taken.values())
