"""How long one call takes: CUDA events on a GPU, the monotonic clock on a CPU, any pretended time in tests."""

import time
from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], object]


class Clock(Protocol):
    """Runs a call and says how many seconds it took."""

    def time_s(self, work: Work) -> float:
        """Return the seconds that one call of `work` takes, until its results are there."""
        ...


class MonotonicClock:
    """The operating system's monotonic clock, for work that is done when the call returns."""

    def time_s(self, work: Work) -> float:
        """Return the seconds of one call."""
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


class CudaClock:
    """CUDA events around a call, so that the device's own time is read, gaps between its kernels included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time_s(self, work: Work) -> float:
        """Return the seconds of one call on the device."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            start.record()
            work()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0


class FakeClock:
    """A clock for tests: the call is made, then `seconds` is asked how long it shall have taken."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds

    def time_s(self, work: Work) -> float:
        """Return the pretended seconds."""
        work()
        return self._seconds()


def clock_for(device: torch.device) -> Clock:
    """Return the clock that belongs to a device."""
    return CudaClock(device) if device.type == "cuda" else MonotonicClock()
