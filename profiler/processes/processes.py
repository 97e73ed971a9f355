"""The processes that measure one profile together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from treeopt.errors import InterruptionError
from treeopt.profiler.clock import Clock

Numbers = tuple[float, ...]
Result = TypeVar("Result")


class Processes(Protocol):
    """What measuring needs to know of the other processes."""

    rank: int
    """This process; process 0 takes the times and writes the profile."""
    count: int
    """How many there are."""
    conditions: str
    """What a profile's conditions owe to them: how the target is split, empty where it is whole."""
    keeps_journal: bool
    """Whether this process measures what no other does, and must keep it."""

    def owns(self, number: int) -> bool:
        """Return whether this process counts a prompt."""

    def together(self, done: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return what all processes counted, prompt by prompt; each of them must call this."""

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return what process 0 makes; each of them must call this."""

    def clock(self, own: Clock) -> Clock:
        """Return the clock by which all of them measure, given that of this process's device."""

    def watched(self, kept: Path | None) -> AbstractContextManager[None]:
        """Return the context of all that they do together: when one of them ends, all end, and the error names it.

        Args:
            kept: the journal, which the error points to.
        """


class OneProcess:
    """A process that is alone."""

    rank = 0
    count = 1
    conditions = ""
    keeps_journal = True

    def owns(self, number: int) -> bool:
        """Return that it counts every prompt."""
        return number >= 0

    def together(self, done: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return what it counted."""
        return dict(done)

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return what it makes."""
        return make()

    def clock(self, own: Clock) -> Clock:
        """Return its own clock."""
        return own

    @contextmanager
    def watched(self, kept: Path | None) -> Iterator[None]:
        """Say of an interruption where what was measured is kept."""
        try:
            yield
        except KeyboardInterrupt:
            if kept is None or not kept.exists():
                raise
            raise InterruptionError(f"interrupted. {what_is_kept(kept)}") from None


def what_is_kept(journal: Path | str | None) -> str:
    """Return the sentence that says where an unfinished profile is and how to go on; None keeps nothing."""
    if journal is None:
        return "Nothing was written."
    return f"What was measured is in {journal}; the same command with --resume goes on from there."
