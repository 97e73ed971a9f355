"""Measuring: times of passes and steps, acceptance, decoding with a tree beside plain decoding."""

from treeopt.profiler.bench import Measured, bench
from treeopt.profiler.clock import Clock, CudaClock, FakeClock, MonotonicClock, clock_for
from treeopt.profiler.journal import Journal
from treeopt.profiler.measure import Measurement
from treeopt.profiler.settings import Settings

__all__ = [
    "Clock",
    "CudaClock",
    "FakeClock",
    "Journal",
    "Measured",
    "Measurement",
    "MonotonicClock",
    "Settings",
    "bench",
    "clock_for",
]
