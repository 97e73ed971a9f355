"""Clocks for single calls: CUDA events on a GPU, the monotonic clock on a CPU."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from treeopt.runtime.models.runner import Runner

Work = Callable[[], object]
"""A call to time."""
MOST_REPEATS = 8
"""Repeats of a call until nothing is captured in it."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Untimed calls before timed ones, because the first calls of a work are slower."""

    first_calls: int = 3
    """Before the first timed call of a work."""
    lead_s: float = 0.01
    """How long a work runs before each timed call."""
    most_lead_calls: int = 8

    def lead_calls(self, samples_s: Sequence[float]) -> int:
        """Return the number of untimed calls before a timed one, given the samples so far.

        After work of another size the first calls of a size are slower, by about half a millisecond in total on a CPU.  A
        short pass needs several calls until it runs as it does in decoding.

        >>> warm_up = WarmUp()
        >>> warm_up.lead_calls([]), warm_up.lead_calls([0.002]), warm_up.lead_calls([0.02])
        (1, 5, 1)
        """
        if not samples_s or self.most_lead_calls <= 1:
            return min(1, self.most_lead_calls)
        return int(np.clip(np.ceil(self.lead_s / np.median(samples_s)), 1, self.most_lead_calls))


class Clock(Protocol):
    """Makes a call and returns the seconds that it took."""

    @property
    def warm_up(self) -> WarmUp:
        """Zero calls if no hardware is timed."""
        ...

    def now_s(self) -> float:
        """Return a monotonic time after all work is done."""
        ...

    def time_s(self, work: Work) -> float:
        """Return the seconds of one call, until its results are available."""
        ...


class MonotonicClock:
    """A monotonic clock, by default the operating system's, for work that is done when the call returns."""

    warm_up = WarmUp()

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self.now_s = now_s or time.perf_counter

    def time_s(self, work: Work) -> float:
        start_s = self.now_s()
        work()
        return self.now_s() - start_s


class CudaClock:
    """CUDA events around a call: the device's own time, gaps between its kernels included."""

    warm_up = WarmUp()

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now_s(self) -> float:
        torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def time_s(self, work: Work) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            start.record()
            work()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else MonotonicClock()


def repeat_without_captures(call: Callable[[], R]) -> R:
    """Return the result of a call in which no graph is captured, after repeating it if need be.

    A capture takes several times as long as its pass, and its shape is replayed from then on.
    """
    for _ in range(MOST_REPEATS):
        captures = Runner.total_captures
        result = call()
        if Runner.total_captures == captures:
            return result
    return call()
