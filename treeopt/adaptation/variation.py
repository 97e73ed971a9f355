"""How much texts differ, as it was measured with the profile and as it is counted on while decoding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import Learnt
from treeopt.arrays import Bool, Float64
from treeopt.records.accepted_ranks import AcceptedRanks

WINDOW = 16
"""Positions within which outcomes are compared with chance."""
LEAST_SD = 0.2
LEAST_VARIANCE = 0.01
ELSEWHERE = 1.0
"""So many differences between two texts what was measured with another sampling is worth."""


class Variation(NamedTuple):
    """How much texts differ, and by how much more outcomes vary within a text than chance has it."""

    sd: float = 0.7
    """Standard deviation of texts' log odds of acceptance around those of all."""
    alike: float = 2.0
    """Outcomes near one another are alike: so many tell what one independent outcome would."""

    @classmethod
    def of(cls, ranks: AcceptedRanks | None) -> "Variation":
        """Return that of measured texts, by the method of moments; without two texts of some length what is usual."""
        texts = [] if ranks is None else [each == 0 for each in ranks.ranks if len(each) >= 2 * WINDOW]
        shares = np.array([float(each.mean()) for each in texts])
        p = float(shares.mean()) if len(texts) > 1 else 0.0
        variance = p * (1 - p)
        if variance < LEAST_VARIANCE:
            return cls()
        alike = _alike(texts)
        length = float(np.mean([len(each) for each in texts]))
        between = float(shares.var(ddof=1)) - alike * variance / length
        return cls(max(LEAST_SD, max(0.0, between) ** 0.5 / variance), alike)

    def independent(self, found: Outcomes, expected: Float64) -> Outcomes:
        """Return outcomes of one text as the fewer ones, of texts each its own, that tell as much of all texts.

        Args:
            found: of one text.
            expected: (D, K), how often each rank is accepted once tried.
        """
        tried = float(found.tried[:, 0].sum())  # of first ranks: later ones are tried where these are wrong
        if tried == 0:
            return found
        p = float(found.tried[:, 0] @ expected[:, 0]) / tried
        share = 1 / (self.alike + tried * self.sd**2 * max(LEAST_VARIANCE, p * (1 - p)))
        return Outcomes(share * found.tried, share * found.accepted)


class TextVariation:
    """How much texts differ: as it was measured, and with another sampling than that as each text adds to it.

        sd^2 = (w sd_measured^2 + sum of ((x_i - x_{i-1})^2 - e_i^2 - e_{i-1}^2) / 2) / (w + number of differences)

    x_i is by how much the first rank's log odds are off in text i, e_i its standard error.  Texts are compared with the
    ones before them, so that what all of them are off by does not count (von Neumann, 1941).

    Args:
        measured: with the profile.
    """

    def __init__(self, measured: Variation) -> None:
        self.now = measured
        self._weight = self._sum = 0.0
        """Of the formula; no weight as long as what was measured holds."""
        self._last: tuple[float, float] | None = None

    def add(self, found: Outcomes, known: Float64) -> None:
        """Count the outcomes of a text, of which the profile has (D, K)."""
        if self._weight == 0:
            return
        now, last = Learnt(found, known, alike=self.now.alike).first_shift, self._last
        self._last = now
        if last is not None:
            self._weight += 1
            self._sum += ((now[0] - last[0]) ** 2 - now[1] ** 2 - last[1] ** 2) / 2
            self.now = self.now._replace(sd=max(LEAST_SD, max(0.0, self._sum / self._weight) ** 0.5))

    def forget(self) -> None:
        """Have what was measured count for little: texts are sampled otherwise from now on."""
        self._weight, self._sum, self._last = ELSEWHERE, ELSEWHERE * self.now.sd**2, None


def _alike(texts: Sequence[Bool]) -> float:
    """Return the variance of outcomes within windows of texts beside that of independent ones, at least 1."""
    squares = variance = 0.0
    for text in texts:
        windows = len(text) // WINDOW
        found = text[: windows * WINDOW].reshape(windows, WINDOW).mean(axis=1)
        p = float(text.mean())
        squares += WINDOW * float(((found - p) ** 2).sum())
        variance += (windows - 1) * p * (1 - p)
    return max(1.0, squares / variance) if variance > 0 else 1.0
