"""The processes that measure one profile together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from treeopt.errors import InterruptionError
from treeopt.profiler.clock import Clock

Numbers = tuple[float, ...]
Result = TypeVar("Result")


class Processes:
    """One process; subclasses communicate with others."""

    rank = 0
    """This process; process 0 takes the times and writes the profile."""
    count = 1
    parts = 1
    """Into how many parts the prompts are divided; each process counts one."""
    conditions = ""
    """Added to the conditions of a profile: how the target is split, empty if it is not."""
    writes_checkpoint = True
    """Whether this process measures what no other does."""

    def owns(self, number: int) -> bool:
        """Return whether this process counts a prompt, or a group of prompts."""
        return number % self.parts == self.rank % self.parts

    def gather(self, counted: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return the counts of all processes, by prompt; every process must call this."""
        return dict(counted)

    def run_on_first(self, make: Callable[[], Result]) -> Result:
        """Return the result of process 0; every process must call this."""
        return make()

    def clock(self, own: Clock) -> Clock:
        """Return the clock for common measurements, given that of this process's device."""
        return own

    @contextmanager
    def supervise(self, checkpoint: Path | None) -> Iterator[None]:
        """Return the context of all joint work: when one process ends, all end, with an error that names it.

        Args:
            checkpoint: which the error points to.
        """
        try:
            yield
        except KeyboardInterrupt:
            if checkpoint is None or not checkpoint.exists():
                raise
            raise InterruptionError(f"interrupted. {describe_checkpoint(checkpoint)}") from None


def describe_checkpoint(checkpoint: Path | str | None) -> str:
    """Return a sentence with the location of an unfinished profile and how to resume it; None for no checkpoint."""
    if checkpoint is None:
        return "Nothing was written."
    return f"What was measured is in {checkpoint}; the same command with --resume goes on from there."
