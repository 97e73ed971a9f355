"""Measured times: samples, their median and its interval, and the table of times against a token count."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from treeopt.arguments import instance, items, numbers, shown, whole_numbers
from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64, Int64, Integers
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import rounded
from treeopt.tabular import Row, Tabular

MOST_S = 1e6
"""Seconds above this, of either sign, are a wrong unit or a broken file."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(ShortRepr):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_named_fields(cls, fields: Fields, name: str) -> "Estimate":
        """Return the estimate of the fields `NAME` and `NAME_interval`; raises FormatError."""
        value, ends = fields.number(name), fields.numbers(f"{name}_interval")
        if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
            raise fields.error(f"{name}_interval", "expected two numbers of at least 0 that rise.")
        return cls(value, *ends)

    def row(self, name: str) -> Row:
        """Return the columns that it has in tables: `NAME`, `NAME_low` and `NAME_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def named_fields(self, name: str) -> dict[str, float | list[float]]:
        """Return what it is in JSON: `NAME` and `NAME_interval`."""
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timing(ArrayRecord):
    """Every sample of one measured time, in the order they were taken.

    Args:
        samples_s: seconds, at least one, each above 0 unless `allow_negative`, which differences of times need.

    >>> Timing([0.2, 0.1, 0.3]).median_s
    0.2
    """

    _shown: ClassVar[tuple[str, ...]] = ("median_s", "samples_s")
    samples_s: Float64
    median_s: float
    """The middle sample: unlike the mean, one interruption does not move it."""

    def __init__(self, samples_s: Sequence[float] | Float64, *, allow_negative: bool = False) -> None:
        samples = numbers("samples_s", samples_s)
        if samples.ndim != 1 or samples.size == 0 or not np.all(np.isfinite(samples)):
            raise InvalidValueError(
                f"samples_s: expected at least one finite number of seconds. Got {shown(samples_s)}."
            )
        if not allow_negative and samples.min() <= 0:
            raise InvalidValueError(f"samples_s: expected seconds above 0. Got {samples.min():g}.")
        samples.flags.writeable = False
        object.__setattr__(self, "samples_s", samples)
        object.__setattr__(self, "median_s", float(np.median(samples)))

    @classmethod
    def from_fields(cls, fields: Fields, *, allow_negative: bool = False) -> "Timing":
        """Return the samples of a file's `samples_s`; raises FormatError, for times that nobody waited for too."""
        samples_s = fields.numbers("samples_s")
        return fields.build("samples_s", _timing, samples_s, allow_negative=allow_negative)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that they stand as."""
        return {"samples_s": rounded(self.samples_s)}

    @property
    def interval_s(self) -> tuple[float, float]:
        """Ends of a 95 % interval of the median, from the order statistics (Conover, 1999, section 3.2).

        Distribution-free; with fewer than 6 samples no such interval exists and the extremes are returned.
        """
        ordered = np.sort(self.samples_s)
        left_out = _left_out(len(ordered))
        return float(ordered[left_out]), float(ordered[-1 - left_out])

    @property
    def estimate(self) -> Estimate:
        """The median with its interval, in seconds."""
        return Estimate(self.median_s, *self.interval_s)

    @property
    def row(self) -> Row:
        """The columns that it has in tables: the median seconds with their interval, and how many samples there are."""
        return {**self.estimate.row("median_s"), "samples": len(self.samples_s)}


def _timing(samples_s: list[float], *, allow_negative: bool = False) -> Timing:
    longest_s = max(samples_s, key=abs, default=0.0)
    if abs(longest_s) > MOST_S:
        raise InvalidValueError(f"expected at most {MOST_S:g} seconds. Got {longest_s:g}: is it another unit?")
    return Timing(samples_s, allow_negative=allow_negative)


def _left_out(count: int) -> int:
    """Return how many ordered samples may be left out at each end while the rest still encloses the median.

    The median lies outside the remaining samples with probability at most 1/40 on each side, because the number of
    samples below it is Binomial(count, 1/2): leaving out j is allowed while P(Binomial <= j) <= 1/40.  Whole numbers
    throughout: 2**1024 is beyond the range of floats.
    """
    left_out, tail, ways = 0, 1, count  # tail: ways to have at most left_out below; ways: to have one more
    while 40 * (tail + ways) <= 2**count:
        left_out += 1
        tail += ways
        ways = ways * (count - left_out) // (left_out + 1)
    return left_out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatencyTable(ArrayRecord, Tabular):
    """Measured seconds against a number of tokens, straight lines between the measured counts.

    Args:
        tokens: int (m,), rising, from 1: the tokens of one model pass.
        timings: as many, the samples at each count.

    Raises InvalidValueError when counts do not rise or do not match the timings.
    """

    _shown: ClassVar[tuple[str, ...]] = ("tokens", "medians_s")
    tokens: Int64
    timings: tuple[Timing, ...]
    medians_s: Float64
    """float64 (m,): the median seconds at each measured count."""

    def __init__(self, tokens: Sequence[int] | Integers, timings: Sequence[Timing]) -> None:
        counts = whole_numbers("tokens", tokens)
        timings = items("timings", timings)
        if counts.ndim != 1 or counts.size == 0 or counts[0] < 1 or np.any(np.diff(counts) <= 0):
            raise InvalidValueError(f"tokens: expected rising counts of at least 1. Got {counts.tolist()}.")
        if len(timings) != len(counts):
            raise InvalidValueError(f"timings: expected {len(counts)}, one per token count. Got {len(timings)}.")
        for i, timing in enumerate(timings):
            instance(f"timings[{i}]", timing, Timing, "make one with treeopt.records.latency.Timing(seconds)")
        medians = np.array([timing.median_s for timing in timings])
        counts.flags.writeable = medians.flags.writeable = False
        object.__setattr__(self, "tokens", counts)
        object.__setattr__(self, "timings", tuple(timings))
        object.__setattr__(self, "medians_s", medians)

    @classmethod
    def from_fields(cls, fields: Fields) -> "LatencyTable":
        """Return the table of a file's `tokens` and `samples_s`; raises FormatError."""
        tokens, samples = fields.integers("tokens"), fields.rows("samples_s")
        timings = [fields.build(f"samples_s[{i}]", _timing, row) for i, row in enumerate(samples)]
        return fields.build("tokens", cls, tokens, timings)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that it stands as."""
        return {"tokens": self.tokens.tolist(), "samples_s": [rounded(timing.samples_s) for timing in self.timings]}

    def to_records(self) -> list[Row]:
        """Return a row for every measured count: the median seconds with their interval, and how many samples."""
        return [
            {"tokens": tokens, **timing.row} for tokens, timing in zip(self.tokens.tolist(), self.timings, strict=True)
        ]

    @property
    def max_tokens(self) -> int:
        """The largest measured count."""
        return int(self.tokens[-1])

    def seconds(self, tokens: Integers | int) -> Float64:
        """Return the median seconds at any count inside the measured range, the shape of `tokens`.

        Raises InfeasibleError outside it: treeopt does not invent what was not measured.
        """
        self._check_range(tokens)
        return np.asarray(np.interp(tokens, self.tokens, self.medians_s))

    def interval_s(self, tokens: Integers | int) -> tuple[Float64, Float64]:
        """Return the ends of an interval of the seconds at any count inside the measured range.

        At a measured count it is the 95 % interval of the median.  Between two it spans both of theirs: a pass takes
        no less than one of fewer tokens and no more than one of more, but where in between it jumps nobody knows.
        """
        self._check_range(tokens)
        low, high = np.array([timing.interval_s for timing in self.timings]).T
        right = np.searchsorted(self.tokens, tokens)
        left = np.where(self.tokens[right] == tokens, right, right - 1)
        return np.minimum(low[left], low[right]), np.maximum(high[left], high[right])

    def _check_range(self, tokens: Integers | int) -> None:
        asked = np.asarray(tokens)
        if asked.size and (asked.min() < self.tokens[0] or asked.max() > self.tokens[-1]):
            outside = int(asked.max() if asked.max() > self.tokens[-1] else asked.min())
            raise InfeasibleError(
                f"tokens: times were measured for {self.tokens[0]} to {self.max_tokens} tokens. Got {outside}: "
                "ask for fewer, or profile with a larger --max-tokens."
            )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class PrefillLatency(ShortRepr):
    """Seconds of prefill against the tokens of the prompt."""

    target: LatencyTable
    draft: LatencyTable | None = None
    """Of the draft model; None without one."""
