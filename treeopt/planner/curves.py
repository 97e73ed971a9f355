"""Seconds of a pass at every count of tokens: straight between those measured, mixed from conditions, and padded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int64, Integers

LEAST_S = 1e-9
"""Draws of an extrapolated time may fall to 0 or below; they are taken to be this long."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Knots(ArrayRecord):
    """What was measured under one condition."""

    share: float
    """Of this condition in the mixture."""
    tokens: Int64
    """(m,), rising."""
    seconds: Float64
    """(…, m): any leading axes hold draws."""

    def __post_init__(self) -> None:
        freeze(self)

    def at(self, counts: Integers) -> Float64:
        """Return (…, counts): straight between the measured counts, and at the last slope beyond."""
        if len(self.tokens) == 1:
            return np.broadcast_to(self.seconds, (*self.seconds.shape[:-1], len(counts)))
        right = np.clip(np.searchsorted(self.tokens, counts), 1, len(self.tokens) - 1)
        share = (counts - self.tokens[right - 1]) / (self.tokens[right] - self.tokens[right - 1])
        return np.asarray((1 - share) * self.seconds[..., right - 1] + share * self.seconds[..., right])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Curve(ArrayRecord):
    """Seconds at 0 … N tokens, kept as what was measured, because draws of every count would fill the memory."""

    knots: tuple[Knots, ...]
    padded: Int64
    """(N + 1,): the count that a pass is padded to; entry 0 is 0, and so is every count that takes no pass."""
    more_s: Float64
    """(…,): what is added so many times …"""
    times: Int64
    """(N + 1,): … at each count."""

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(cls, seconds: Sequence[float] | Float64) -> "Curve":
        """Return the curve with these seconds at 0, 1, … tokens."""
        every = np.asarray(seconds, np.float64)
        counts = np.arange(every.shape[-1])
        return cls((Knots(1.0, counts, every),), counts, np.zeros(every.shape[:-1]), np.zeros_like(counts))

    @classmethod
    def free(cls, max_tokens: int) -> "Curve":
        """Return the curve of what takes no pass at any count."""
        none = np.zeros(max_tokens + 1, np.int64)
        return cls((Knots(1.0, none[:1], np.zeros(1)),), none, np.zeros(()), none)

    @property
    def max_tokens(self) -> int:
        """N."""
        return len(self.padded) - 1

    def at(self, counts: Integers) -> Float64:
        """Return (…, *counts.shape): seconds at counts from 0 to N; no tokens take 0."""
        place = np.bincount(counts.ravel(), minlength=1)
        asked = np.flatnonzero(place)  # each count once
        place[asked] = np.arange(len(asked))
        more_s = self.more_s[..., None] * self.times[asked]
        seconds = np.maximum(mixed(self.knots, self.padded[asked]) + more_s, LEAST_S) * (self.padded[asked] > 0)
        return np.asarray(seconds[..., place[counts]])


def mixed(knots: Sequence[Knots], counts: Integers) -> Float64:
    """Return (…, counts): the seconds of all conditions, each with its share."""
    if len(knots) == 1:
        return knots[0].at(counts)
    return np.asarray(sum(each.share * each.at(counts) for each in knots))


def padding(seconds: Float64) -> Int64:
    """Return (N + 1,): at which count or larger a pass takes least, in a tie the smallest; entry 0 is 0.

    Args:
        seconds: (N,), at 1 … N tokens.
    """
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    counts = np.where(seconds == least, np.arange(1, len(seconds) + 1), len(seconds))
    return np.append(0, np.minimum.accumulate(counts[::-1])[::-1])
