"""What counted outcomes say of every rank and depth, those that were never tried included.

    log odds(h[d, k]) = log odds before + shift[k] + what cell (d, k) itself says

h[d, k] is how often the child of rank k at depth d is accepted once it is tried.  A draft that became worse became worse
at every depth, so the shift of a rank is common to all depths; it is found by maximum posterior (Newton's method on the
binomial likelihood, a normal prior around 0).  Every cell then counts `PRIOR_OUTCOMES` of what the shift makes of what
was known before, beside its own outcomes.  No outcome: what was known, so that nothing changes before something is counted.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.adaptation.counts import Outcomes
from treeopt.arrays import Float64, Int64

DRAWS = 64
GROUPS = 3
"""Ranks that have a shift of their own; the last one's is that of all behind it too."""
PRIOR_OUTCOMES = 40.0
"""By how many outcomes of a cell the shifted profile is outweighed."""
SHIFT_SD = 2.0
"""Of the first rank's shift, in log odds, where anything may have changed."""
LATER_SD, FOLLOWING = 0.3, 0.5
"""Of a later rank's: so much, and such a share of how far the first rank's shift went."""
LEAST = 1e-4
"""Nothing is taken to be accepted less often than this, or more often than 1 less this."""
ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Learnt:
    """What outcomes say of every rank and depth.

    Args:
        outcomes: counted.
        known: (D, K), how often each rank was accepted once tried, as the profile has it.
        before: (D, K) or a number, what is known besides, in log odds.
        sd: standard deviation of the first rank's shift before anything was counted.
        alike: outcomes that tell what one independent outcome would.
    """

    outcomes: Outcomes
    known: Float64
    before: Float64 | float = 0.0
    sd: float = SHIFT_SD
    alike: float = 1.0

    @cached_property
    def expected(self) -> Float64:
        """(D, K): how often each rank is accepted once it is tried."""
        shifted = probability(self._odds + self._shift)
        return np.asarray((self.outcomes.accepted + PRIOR_OUTCOMES * shifted) / (self.outcomes.tried + PRIOR_OUTCOMES))

    @property
    def first_shift(self) -> tuple[float, float]:
        """The first rank's shift, common to all depths, and its standard deviation."""
        return self._shifts[0]

    @cached_property
    def shift(self) -> Float64:
        """(D, K): what is added to the profile's log odds."""
        return log_odds(np.clip(self.expected, LEAST, 1 - LEAST)) - log_odds(self.known)

    def draws(self, generator: np.random.Generator, depths: int, ranks: int) -> Float64:
        """Return (draws, depths, ranks): what the shift of the first of them may be as well."""
        first = slice(depths), slice(ranks)
        noise = generator.standard_normal((DRAWS, 1, GROUPS))[..., self._group]
        drawn = probability((self._odds + self._shift + self._shift_sd * noise)[:, *first])
        tried, accepted = (each[first] for each in self.outcomes)
        right = (accepted + PRIOR_OUTCOMES * drawn) / self.alike
        wrong = (tried - accepted + PRIOR_OUTCOMES * (1 - drawn)) / self.alike
        cells = generator.beta(np.maximum(right, LEAST), np.maximum(wrong, LEAST))
        return log_odds(np.clip(cells, LEAST, 1 - LEAST)) - log_odds(self.known[first])

    @cached_property
    def _odds(self) -> Float64:
        return np.asarray(log_odds(self.known) + self.before)

    @cached_property
    def _group(self) -> Int64:
        """(K,): which shift each rank has."""
        return np.minimum(np.arange(self.known.shape[1]), GROUPS - 1)

    @cached_property
    def _shifts(self) -> list[tuple[float, float]]:
        """Of every group the most plausible shift, and its standard deviation."""
        found: list[tuple[float, float]] = []
        for group in range(int(self._group[-1]) + 1):
            ranks = slice(group, group + 1 if group < GROUPS - 1 else None)
            sd = LATER_SD + FOLLOWING * abs(found[0][0]) if found else self.sd
            tried, accepted = (each[:, ranks] / self.alike for each in self.outcomes)
            found.append(_shift(tried, accepted, self._odds[:, ranks], sd))
        return found

    @property
    def _shift(self) -> Float64:
        return np.array([shift for shift, _ in self._shifts])[self._group]

    @property
    def _shift_sd(self) -> Float64:
        return np.array([sd for _, sd in self._shifts])[self._group]


def conditional(rows: Float64) -> Float64:
    """Return, of rows of an acceptance table (…, K), how often each rank is accepted once it is tried.

    >>> conditional(np.array([0.5, 0.25, 0.25])).round(4).tolist()
    [0.5, 0.5, 0.9999]
    """
    before = np.cumsum(rows, axis=-1) - rows
    return np.asarray(np.clip(rows / np.maximum(1 - before, LEAST), LEAST, 1 - LEAST))


def joint(tried: Float64) -> Float64:
    """Return the rows of an acceptance table, (…, K), of how often each rank is accepted once it is tried.

    >>> joint(np.array([0.5, 0.5, 0.5])).tolist()
    [0.5, 0.25, 0.125]
    """
    rejected = np.cumprod(1 - tried, axis=-1)
    return np.asarray(tried * np.concatenate([np.ones_like(tried[..., :1]), rejected[..., :-1]], axis=-1))


def log_odds(p: Float64) -> Float64:
    """Return the logarithm of the odds of probabilities."""
    return np.asarray(np.log(p / (1 - p)))


def probability(odds: Float64) -> Float64:
    """Return the probabilities of log odds, never 0 or 1."""
    return np.asarray(np.clip(1 / (1 + np.exp(-odds)), LEAST, 1 - LEAST))


def shifted(p: Float64, shift: Float64) -> Float64:
    """Return probabilities with their log odds moved."""
    return probability(log_odds(p) + shift)


def surprise(outcomes: Outcomes, expected: Float64) -> float:
    """Return by how many standard errors outcomes are off what was expected of them, (D, K): first ranks, or all later.

    >>> round(surprise(Outcomes(np.array([[100.0]]), np.array([[60.0]])), np.array([[0.5]])), 3)
    2.0
    """
    return abs(signed_surprise(outcomes, expected))


def signed_surprise(outcomes: Outcomes, expected: Float64) -> float:
    """Return the same, below 0 where less was accepted than expected."""
    off = outcomes.accepted - outcomes.tried * expected
    variance = outcomes.tried * expected * (1 - expected)
    first = off[:, 0].sum() / np.sqrt(variance[:, 0].sum() + LEAST**2)
    later = off[:, 1:].sum() / np.sqrt(variance[:, 1:].sum() + 1.0)
    return float(max(first, later, key=abs))


def _shift(tried: Float64, accepted: Float64, odds: Float64, sd: float) -> tuple[float, float]:
    """Return the most plausible shift of some cells, and its standard deviation."""
    shift, precision = 0.0, 1 / sd**2
    if not tried.any():
        return shift, sd
    for _ in range(ROUNDS):
        p = probability(odds + shift)
        slope = float((accepted - tried * p).sum()) - shift * precision
        curvature = float((tried * p * (1 - p)).sum()) + precision
        change = slope / curvature
        shift += float(np.clip(change, -1.0, 1.0))  # far away the likelihood is flat, and a whole step goes beyond
        if abs(change) < LEAST:
            break
    return shift, curvature**-0.5
