"""Measuring: latencies of passes and steps, acceptance, draft records, and speedups over plain decoding."""

from treeopt.profiler.acceptance.draft_record import RecordFiles, Recording
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.clock import Clock, CudaClock, MonotonicClock, clock_for
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.profile_run import Measurement
from treeopt.profiler.settings import RecordSize, Settings

__all__ = [
    "Checkpoint",
    "Clock",
    "CudaClock",
    "Decoding",
    "Measurement",
    "MonotonicClock",
    "RecordFiles",
    "RecordSize",
    "Recording",
    "Settings",
    "Workload",
    "bench_trees",
    "clock_for",
]


def __dir__() -> list[str]:
    return __all__  # for tab completion
