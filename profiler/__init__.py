"""Measuring: times of passes and steps, acceptance, draft records, decoding with a tree beside plain decoding."""

from treeopt.profiler.acceptance.draft_record import Recording, TextFiles
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.clock import Clock, CudaClock, MonotonicClock, clock_for
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.journal import Journal
from treeopt.profiler.profile_run import Measurement
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.results import Measured

__all__ = [
    "Clock",
    "CudaClock",
    "Decoding",
    "Journal",
    "Measured",
    "Measurement",
    "MonotonicClock",
    "RecordSize",
    "Recording",
    "Settings",
    "TextFiles",
    "Workload",
    "bench_trees",
    "clock_for",
]


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
