"""How far measured times can be trusted: whether the machine kept its speed, and how close neighbours are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import Warning
from treeopt.records.latency import LatencyTable, Timing

FEWEST_SAMPLES = 6
"""Times with fewer samples do not tell drift from noise."""


def line_errors(tokens: Sequence[int], seconds: Sequence[float]) -> Float64:
    """Return (m - 1,): how far the curve may be off the straight line between neighbours, relative to the time there.

    The error of a straight line is about a quarter of its width times the change of slope at its ends; where no count
    lies between there is none.
    """
    counts, times = np.array(tokens, np.float64), np.array(seconds)
    if len(counts) < 3:
        return np.zeros(max(0, len(counts) - 1))
    widths = np.diff(counts)
    bends = np.abs(np.diff(np.diff(times) / widths))
    bend_at_ends = np.maximum(np.append(bends, 0.0), np.insert(bends, 0, 0.0))
    return np.asarray(np.where(widths < 2, 0.0, bend_at_ends * widths / 4 / np.minimum(times[:-1], times[1:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What is left open about a curve, relative to its times."""

    at_counts: float
    """Half the 95 % interval of a measured median, the middle one of all counts."""
    between_counts: float
    """How far a straight line between neighbours may be off, the worst of all; see `line_errors`."""


def precision(table: LatencyTable) -> Precision:
    """Return what is left open about a curve."""
    halves = [(high - low) / 2 for low, high in (timing.interval_s for timing in table.timings)]
    errors = line_errors(table.tokens.tolist(), table.medians_s.tolist())
    return Precision(
        at_counts=float(np.median(np.array(halves) / table.medians_s)),
        between_counts=float(errors.max(initial=0.0)),
    )


def drift(timings: Iterable[Timing]) -> float:
    """Return by how much the machine was slower in the later half of each time's samples than in the earlier.

    Every round visits every count, so that all times slow down together where the machine does: the median over the
    times tells it from noise.  0 where there are too few samples.

    >>> drift([Timing([1.0, 1.0, 1.0, 1.2, 1.2, 1.2])])
    0.2
    """
    ratios = [
        np.median(timing.samples_s[len(timing.samples_s) // 2 :])
        / np.median(timing.samples_s[: len(timing.samples_s) // 2])
        for timing in timings
        if len(timing.samples_s) >= FEWEST_SAMPLES
    ]
    return float(np.round(np.median(ratios) - 1, 12)) if ratios else 0.0


def spread(timings: Iterable[Timing]) -> float:
    """Return how far apart the quartiles of a time's samples lie, relative to its median: the middle one of all times."""
    widths = [
        (np.quantile(timing.samples_s, 0.75) - np.quantile(timing.samples_s, 0.25)) / timing.median_s
        for timing in timings
        if len(timing.samples_s) >= FEWEST_SAMPLES
    ]
    return float(np.median(widths)) if widths else 0.0


def other_programs_warning(sight: str, device_type: str, otherwise: str) -> Warning:
    """Return the warning that other programs make measured times too long.

    Args:
        sight: what they use, in words.
        device_type: of the model that is timed.
        otherwise: what to do instead of closing them.
    """
    late = device_type != "cpu"
    effect = "The host may start the device's work too late" if late else "Times measured now are too long"
    return Warning(f"other programs use {sight}. {effect}.", f"Close them, or {otherwise}.")
