"""What times calls, and where their times are kept."""

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.profiler.clock import Clock
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.watch import Watched


@dataclass(frozen=True, slots=True)
class Recorder:
    """A clock and a journal, and who is told of every sample."""

    clock: Clock
    """Times the calls."""
    journal: Journal
    """Where every sample is kept at once; those already there count."""
    tick: Callable[[], object] = lambda: None
    """Called after every sample."""
    watched: Watched | None = None
    """Tells which samples other programs disturbed; by default none."""
