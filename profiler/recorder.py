"""What times calls, and where their times are kept."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from treeopt.profiler.clock import Clock
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.watch import Watched

SEED = 0


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
    order: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    """Shuffles every round; one generator for the whole run, so that no order repeats."""
