"""Seconds of a pass at every number of tokens: linear between breakpoints, and padded where a larger pass is faster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int64, Integers

MIN_S = 1e-9
"""Draws of an extrapolated time may fall to 0 or below; they are raised to this."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Curve(ArrayRecord):
    """Seconds at 0 … N tokens, stored at breakpoints only: draws at every count would fill the memory."""

    tokens: Int64
    """(m,), increasing: the breakpoints."""
    seconds: Float64
    """(…, m): any leading axes hold draws."""
    padded: Int64
    """(N + 1,): the count that a pass is padded to; 0 where no pass is needed, as at 0 tokens."""
    overhead_s: Float64
    """(…,): overhead per unit."""
    overhead_units: Int64
    """(N + 1,): how often the overhead counts at each count."""

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def without_overhead(cls, tokens: Int64, seconds: Float64, padded: Int64) -> "Curve":
        return cls(tokens, seconds, padded, np.zeros(seconds.shape[:-1]), np.zeros_like(padded))

    @classmethod
    def of(cls, seconds: Sequence[float] | Float64) -> "Curve":
        """Return the curve with these seconds at 0, 1, … tokens."""
        values = np.asarray(seconds, np.float64)
        counts = np.arange(values.shape[-1])
        return cls.without_overhead(counts, values, counts)

    @classmethod
    def free(cls, max_tokens: int) -> "Curve":
        """Return a curve that is 0 at every count."""
        counts = np.zeros(max_tokens + 1, np.int64)
        return cls.without_overhead(counts[:1], np.zeros(1), counts)

    @property
    def max_tokens(self) -> int:
        """N."""
        return len(self.padded) - 1

    def at(self, counts: Integers) -> Float64:
        """Return (…, *counts.shape): seconds at counts from 0 to N; 0 at 0 tokens."""
        index = np.bincount(counts.ravel(), minlength=1)
        distinct = np.flatnonzero(index)  # interpolate each count once
        index[distinct] = np.arange(len(distinct))
        overhead_s = self.overhead_s[..., None] * self.overhead_units[distinct]
        seconds = interpolate(self.tokens, self.seconds, self.padded[distinct]) + overhead_s
        return np.asarray((np.maximum(seconds, MIN_S) * (self.padded[distinct] > 0))[..., index[counts]])


def interpolate(tokens: Int64, seconds: Float64, counts: Integers) -> Float64:
    """Return (…, counts): linear between breakpoints, and at the last slope beyond.

    Args:
        tokens: (m,), increasing.
        seconds: (…, m).
        counts: number of tokens of each pass.
    """
    if len(tokens) == 1:
        return np.broadcast_to(seconds, (*seconds.shape[:-1], len(counts)))
    right = np.clip(np.searchsorted(tokens, counts), 1, len(tokens) - 1)
    fraction = (counts - tokens[right - 1]) / (tokens[right] - tokens[right - 1])
    return np.asarray((1 - fraction) * seconds[..., right - 1] + fraction * seconds[..., right])


def padding(seconds: Float64) -> Int64:
    """Return (N + 1,): the fastest count that is at least as large, in a tie the smallest; entry 0 is 0.

    Args:
        seconds: (N,), at 1 … N tokens.
    """
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    counts = np.where(seconds == least, np.arange(1, len(seconds) + 1), len(seconds))
    return np.append(0, np.minimum.accumulate(counts[::-1])[::-1])
