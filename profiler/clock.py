"""How long one call takes: CUDA events on a GPU, the monotonic clock on a CPU, any pretended time in tests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Calls that go untimed, because the first calls of a work are slower than those that follow."""

    first_calls: int = 3
    """Before a work is timed at all."""
    lead_s: float = 0.01
    """How long a work is run before each timed call of it."""
    most_lead_calls: int = 8

    def lead_calls(self, samples_s: Sequence[float]) -> int:
        """Return how many calls go untimed before a timed one, given the samples so far.

        After work of another size the first calls of a size are slower, by about half a millisecond in all on a CPU: a
        short pass needs several until it runs as it does in decoding, where one follows the other.

        >>> warm_up = WarmUp()
        >>> warm_up.lead_calls([]), warm_up.lead_calls([0.002]), warm_up.lead_calls([0.02])
        (1, 5, 1)
        """
        if not samples_s or self.most_lead_calls <= 1:
            return min(1, self.most_lead_calls)
        return int(np.clip(np.ceil(self.lead_s / np.median(samples_s)), 1, self.most_lead_calls))


class Clock(Protocol):
    """Runs a call and says how many seconds it took."""

    @property
    def warm_up(self) -> WarmUp:
        """What goes untimed before that: nothing where no hardware is timed."""
        ...

    def now_s(self) -> float:
        """Return a time that never goes back, once all work is done."""
        ...

    def time_s(self, work: Work) -> float:
        """Return the seconds that one call of `work` takes, until its results are there."""
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
    """CUDA events around a call, so that the device's own time is read, gaps between its kernels included."""

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
    """Return the clock that belongs to a device."""
    return CudaClock(device) if device.type == "cuda" else MonotonicClock()
