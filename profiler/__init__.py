"""Measuring: times of passes and steps, acceptance, draft records, decoding with a tree beside plain decoding."""

from treeopt.profiler.acceptance.draft_record import Recording, TextFiles
from treeopt.profiler.bench.compare import Measured, bench, bench_trees
from treeopt.profiler.clock import Clock, CudaClock, MonotonicClock, clock_for
from treeopt.profiler.journal import Journal
from treeopt.profiler.profile_run import Measurement
from treeopt.profiler.settings import RecordSize, Settings

__all__ = [
    "Clock",
    "CudaClock",
    "Journal",
    "Measured",
    "Measurement",
    "MonotonicClock",
    "RecordSize",
    "Recording",
    "Settings",
    "TextFiles",
    "bench",
    "bench_trees",
    "clock_for",
]


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
