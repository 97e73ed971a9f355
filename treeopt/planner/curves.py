"""Seconds of a pass at every number of tokens: linear between breakpoints, and padded where a larger pass is faster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int64, Integers

LEAST_S = 1e-9
"""Draws of an extrapolated time may fall to 0 or below; they are raised to this."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Curve(ArrayRecord):
    """Seconds at 0 … N tokens, stored at breakpoints alone: draws at every count would fill the memory."""

    tokens: Int64
    """(m,), rising: the breakpoints."""
    seconds: Float64
    """(…, m): any leading axes hold draws."""
    padded: Int64
    """(N + 1,): the count that a pass is padded to; 0 where no pass is needed, as at 0 tokens."""
    more_s: Float64
    """(…,): overhead that grows with the count …"""
    times: Int64
    """(N + 1,): … and how often it counts at each."""

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(cls, seconds: Sequence[float] | Float64) -> "Curve":
        """Return the curve with these seconds at 0, 1, … tokens."""
        every = np.asarray(seconds, np.float64)
        counts = np.arange(every.shape[-1])
        return cls(counts, every, counts, np.zeros(every.shape[:-1]), np.zeros_like(counts))

    @classmethod
    def free(cls, max_tokens: int) -> "Curve":
        """Return the curve of what needs no pass at any count."""
        none = np.zeros(max_tokens + 1, np.int64)
        return cls(none[:1], np.zeros(1), none, np.zeros(()), none)

    @property
    def max_tokens(self) -> int:
        """N."""
        return len(self.padded) - 1

    def at(self, counts: Integers) -> Float64:
        """Return (…, *counts.shape): seconds at counts from 0 to N; no tokens take 0."""
        place = np.bincount(counts.ravel(), minlength=1)
        wanted = np.flatnonzero(place)  # each count once
        place[wanted] = np.arange(len(wanted))
        more_s = self.more_s[..., None] * self.times[wanted]
        seconds = interpolate(self.tokens, self.seconds, self.padded[wanted]) + more_s
        return np.asarray((np.maximum(seconds, LEAST_S) * (self.padded[wanted] > 0))[..., place[counts]])


def interpolate(tokens: Int64, seconds: Float64, counts: Integers) -> Float64:
    """Return (…, counts): linear between breakpoints, and at the last slope beyond.

    Args:
        tokens: (m,), rising.
        seconds: (…, m).
        counts: where.
    """
    if len(tokens) == 1:
        return np.broadcast_to(seconds, (*seconds.shape[:-1], len(counts)))
    right = np.clip(np.searchsorted(tokens, counts), 1, len(tokens) - 1)
    share = (counts - tokens[right - 1]) / (tokens[right] - tokens[right - 1])
    return np.asarray((1 - share) * seconds[..., right - 1] + share * seconds[..., right])


def padding(seconds: Float64) -> Int64:
    """Return (N + 1,): at which count or larger a pass takes least, in a tie the smallest; entry 0 is 0.

    Args:
        seconds: (N,), at 1 … N tokens.
    """
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    counts = np.where(seconds == least, np.arange(1, len(seconds) + 1), len(seconds))
    return np.append(0, np.minimum.accumulate(counts[::-1])[::-1])
