"""Quality of measured times: precision, drift of the machine, and spread of samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import Warning
from treeopt.records.latency import LatencyTable, Timing

MIN_SAMPLES = 6
"""Fewer samples do not separate drift from noise."""


def interpolation_errors(tokens: Sequence[int], seconds: Sequence[float]) -> Float64:
    """Return (m - 1,): the estimated error of linear interpolation between neighbouring counts, relative to the time.

    The error is about a quarter of the interval's width times the change of slope at its ends, and 0 between adjacent counts.
    """
    counts, times = np.array(tokens, np.float64), np.array(seconds)
    if len(counts) < 3:
        return np.zeros(max(0, len(counts) - 1))
    widths = np.diff(counts)
    slope_changes = np.abs(np.diff(np.diff(times) / widths))
    largest_change = np.maximum(np.append(slope_changes, 0.0), np.insert(slope_changes, 0, 0.0))
    return np.asarray(np.where(widths < 2, 0.0, largest_change * widths / 4 / np.minimum(times[:-1], times[1:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Relative errors of a latency table."""

    at_counts: float | None
    """Median half-width of the 95 % intervals, over counts with several samples; None without such counts."""
    between_counts: float
    """Largest of the `interpolation_errors`."""


def estimate_precision(table: LatencyTable) -> Precision:
    repeated = [timing for timing in table.timings if len(timing.samples_s) > 1]
    halves = [(timing.interval_s[1] - timing.interval_s[0]) / 2 / timing.median_s for timing in repeated]
    errors = interpolation_errors(table.tokens.tolist(), table.medians_s.tolist())
    return Precision(
        at_counts=float(np.median(halves)) if halves else None,
        between_counts=float(errors.max(initial=0.0)),
    )


def estimate_drift(timings: Iterable[Timing]) -> float:
    """Return the relative slowdown of the machine from the first to the second half of each time's samples.

    Every round visits every count, so a slower machine slows all times, and the median over times removes noise. 0 with too
    few samples.

    >>> estimate_drift([Timing([1.0, 1.0, 1.0, 1.2, 1.2, 1.2])])
    0.2
    """
    ratios = [
        np.median(timing.samples_s[len(timing.samples_s) // 2 :])
        / np.median(timing.samples_s[: len(timing.samples_s) // 2])
        for timing in timings
        if len(timing.samples_s) >= MIN_SAMPLES
    ]
    return float(np.round(np.median(ratios) - 1, 12)) if ratios else 0.0


def relative_iqr(timings: Iterable[Timing]) -> float:
    """Return the median over all times of a time's interquartile range relative to its median."""
    widths = [
        (np.quantile(timing.samples_s, 0.75) - np.quantile(timing.samples_s, 0.25)) / timing.median_s
        for timing in timings
        if len(timing.samples_s) >= MIN_SAMPLES
    ]
    return float(np.median(widths)) if widths else 0.0


def other_programs_warning(load: str, device_type: str, alternative: str) -> Warning:
    """Return the warning that other programs disturb timings.

    Args:
        load: description of what other programs use.
        device_type: of the timed model.
        alternative: remedy other than closing the programs.
    """
    on_cpu = device_type == "cpu"
    effect = "Times measured now are too long" if on_cpu else "The host may start the device's work too late"
    return Warning(f"other programs use {load}. {effect}.", f"Close them, or {alternative}.")
