"""Measured times: samples, their median and its interval, and a table of times by token count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from treeopt.arguments import check_instance, check_list, describe_value, to_float_array, to_int_array
from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64, Int64, Integers
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file, rounded
from treeopt.tabular import Row, Tabular

MAX_S = 1e6
"""Upper bound of seconds in files, of either sign."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(ShortRepr):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_named_fields(cls, fields: Fields, name: str) -> "Estimate":
        """Read the fields `NAME` and `NAME_interval`; raises FormatError."""
        value, ends = fields.number(name), fields.numbers(f"{name}_interval")
        if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
            raise fields.error(f"{name}_interval", "expected two increasing numbers of at least 0.")
        return cls(value, *ends)

    def row(self, name: str) -> Row:
        """Return the columns `NAME`, `NAME_low` and `NAME_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def named_fields(self, name: str) -> dict[str, float | list[float]]:
        """Return the JSON fields `NAME` and `NAME_interval`."""
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def _check_seconds(samples_s: list[float]) -> list[float]:
    longest_s = max(samples_s, key=abs, default=0.0)
    if abs(longest_s) > MAX_S:
        raise InvalidValueError(f"expected at most {MAX_S:g} seconds. Got {longest_s:g}: is it another unit?")
    return samples_s


def read_samples(fields: Fields, name: str) -> list[float]:
    """Read seconds; raises FormatError if they are larger than `MAX_S`."""
    return fields.build(name, _check_seconds, fields.numbers(name))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timing(ArrayRecord):
    """All samples of one measured time, in the order of measurement.

    Args:
        samples_s: seconds, at least one sample.
        allow_negative: accept seconds of 0 and below, for differences of times.

    >>> Timing([0.2, 0.1, 0.3]).median_s
    0.2
    """

    _shown: ClassVar[tuple[str, ...]] = ("median_s", "samples_s")
    samples_s: Float64 = field(metadata=in_file(read=read_samples, write=rounded))
    median_s: float = field(init=False)
    """Unlike the mean, robust to single interruptions."""

    def __init__(self, samples_s: Sequence[float] | Float64, *, allow_negative: bool = False) -> None:
        samples = to_float_array("samples_s", samples_s)
        if samples.ndim != 1 or samples.size == 0 or not np.all(np.isfinite(samples)):
            raise InvalidValueError(
                f"samples_s: expected at least one finite number of seconds. Got {describe_value(samples_s)}."
            )
        if not allow_negative and samples.min() <= 0:
            raise InvalidValueError(f"samples_s: expected seconds above 0. Got {samples.min():g}.")
        samples.flags.writeable = False
        object.__setattr__(self, "samples_s", samples)
        object.__setattr__(self, "median_s", float(np.median(samples)))

    @property
    def interval_s(self) -> tuple[float, float]:
        """A distribution-free 95 % interval of the median, from order statistics (Conover, 1999, section 3.2).

        With fewer than 6 samples no such interval exists; it is then the range of the samples.
        """
        ordered = np.sort(self.samples_s)
        excluded = _excluded_per_side(len(ordered))
        return float(ordered[excluded]), float(ordered[-1 - excluded])

    @property
    def estimate(self) -> Estimate:
        """The median and its interval, in seconds."""
        return Estimate(self.median_s, *self.interval_s)

    @property
    def row(self) -> Row:
        """Table columns: the median seconds with their interval, and the number of samples."""
        return {**self.estimate.row("median_s"), "samples": len(self.samples_s)}


def _excluded_per_side(count: int) -> int:
    """Return the number of ordered samples that a 95 % interval of the median excludes at each end.

    The number of samples below the median is Binomial(count, 1/2). Excluding j is allowed while P(Binomial <= j) <= 1/40.
    Computed from logarithms, because 2**1024 is beyond the range of floats.
    """
    below = np.arange(1, count // 2 + 1)
    log_ways = np.concatenate([[0.0], np.cumsum(np.log((count + 1 - below) / below))])
    tails = np.cumsum(np.exp(log_ways - count * math.log(2)))
    return max(0, int(np.searchsorted(tails, 1 / 40, side="right")) - 1)


def read_difference(fields: Fields, name: str) -> Timing:
    """Read the `samples_s` of a difference of times, which may be negative."""
    del name
    return fields.build("samples_s", Timing, read_samples(fields, "samples_s"), allow_negative=True)


def _read_timings(fields: Fields, name: str) -> list[Timing]:
    rows = fields.nested_numbers(name, depth=2)
    return [fields.build(f"{name}[{i}]", lambda row: Timing(_check_seconds(row)), row) for i, row in enumerate(rows)]


def _serialize_timings(timings: Sequence[Timing]) -> list[list[float]]:
    return [rounded(timing.samples_s) for timing in timings]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatencyTable(ArrayRecord, Tabular):
    """Seconds of a model pass by its number of tokens, with linear interpolation between measured counts.

    Args:
        tokens: int (m,), increasing, at least 1.
        timings: the samples at each count.

    Raises InvalidValueError if counts do not increase or do not match the timings.
    """

    _shown: ClassVar[tuple[str, ...]] = ("tokens", "medians_s")
    tokens: Int64 = field(metadata=in_file(read=Fields.integers, write=np.ndarray.tolist))
    timings: tuple[Timing, ...] = field(metadata=in_file("samples_s", read=_read_timings, write=_serialize_timings))
    medians_s: Float64 = field(init=False)
    """float64 (m,)."""

    def __init__(self, tokens: Sequence[int] | Integers, timings: Sequence[Timing]) -> None:
        counts = to_int_array("tokens", tokens)
        timings = check_list("timings", timings)
        if counts.ndim != 1 or counts.size == 0 or counts[0] < 1 or np.any(np.diff(counts) <= 0):
            raise InvalidValueError(f"tokens: expected increasing counts of at least 1. Got {counts.tolist()}.")
        if len(timings) != len(counts):
            raise InvalidValueError(f"timings: expected {len(counts)}, one per token count. Got {len(timings)}.")
        for i, timing in enumerate(timings):
            check_instance(f"timings[{i}]", timing, Timing, "make one with treeopt.records.latency.Timing(seconds)")
        medians = np.array([timing.median_s for timing in timings])
        counts.flags.writeable = medians.flags.writeable = False
        object.__setattr__(self, "tokens", counts)
        object.__setattr__(self, "timings", tuple(timings))
        object.__setattr__(self, "medians_s", medians)

    def to_records(self) -> list[Row]:
        return [
            {"tokens": tokens, **timing.row} for tokens, timing in zip(self.tokens.tolist(), self.timings, strict=True)
        ]

    @property
    def max_tokens(self) -> int:
        return int(self.tokens[-1])

    def seconds(self, tokens: Integers | int) -> Float64:
        """Interpolate the median seconds at `tokens`; raises InfeasibleError outside the measured range."""
        self._check_range(tokens)
        return np.asarray(np.interp(tokens, self.tokens, self.medians_s))

    def interval_s(self, tokens: Integers | int) -> tuple[Float64, Float64]:
        """Return both ends of an interval of the seconds at `tokens`; raises InfeasibleError outside the measured range.

        At a measured count it is the 95 % interval of the median. Between two counts it spans both intervals: times do not
        decrease with tokens, but a jump can be anywhere in between.
        """
        self._check_range(tokens)
        low, high = np.array([timing.interval_s for timing in self.timings]).T
        right = np.searchsorted(self.tokens, tokens)
        left = np.where(self.tokens[right] == tokens, right, right - 1)
        return np.minimum(low[left], low[right]), np.maximum(high[left], high[right])

    def _check_range(self, tokens: Integers | int) -> None:
        counts = np.asarray(tokens)
        if counts.size and (counts.min() < self.tokens[0] or counts.max() > self.tokens[-1]):
            outside = int(counts.max() if counts.max() > self.tokens[-1] else counts.min())
            raise InfeasibleError(
                f"tokens: times were measured for {self.tokens[0]} to {self.max_tokens} tokens. Got {outside}: "
                "ask for fewer, or profile with a larger --max-tokens."
            )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class PrefillLatency(ShortRepr):
    """Seconds of prefill by prompt length."""

    target: LatencyTable
    draft: LatencyTable | None = None
    """None without a draft model."""
