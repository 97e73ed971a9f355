"""What was measured, and what it may have been: medians of times and sums over texts, once or in many draws.

The same draws serve every tree and every option, so that these can be compared within a draw.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Protocol

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.records.latency import Estimate, Timing

DRAWS = 1000
SEED = 20240219
NEAR = 0.99
"""Share of the best speed that counts as being as good."""


class Estimator(Protocol):
    """Turns measurements into numbers; any leading axes hold draws."""

    def medians_s(self, timings: tuple[Timing, ...]) -> Float64:
        """Return (…, len(timings)): seconds."""

    def text_weights(self, texts: int) -> Int64:
        """Return (…, texts): how often each text counts."""


class Observed:
    """Every measurement as it is."""

    def medians_s(self, timings: tuple[Timing, ...]) -> Float64:
        return np.array([timing.median_s for timing in timings])

    def text_weights(self, texts: int) -> Int64:
        return np.ones(texts, np.int64)


OBSERVED = Observed()


class Resampled:
    """Draws of what the measurements may have been: (draws, …)."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._weights: Callable[[int], Int64] = cache(lambda texts: draw_text_weights(texts, generator))

    def medians_s(self, timings: tuple[Timing, ...]) -> Float64:
        return draw_medians(timings, self._generator)

    def text_weights(self, texts: int) -> Int64:
        return self._weights(texts)  # the same again: the same prompts were decoded at every context length


def draw_medians(timings: tuple[Timing, ...], generator: np.random.Generator) -> Float64:
    """Return (draws, len(timings)): what each median may be, normal with its bootstrap error.

    The variance of the median over all resamples is known in closed form (Maritz and Jarrett, 1978): the i-th of m
    ordered samples is the median of a resample with the probability that a Beta((m + 1) / 2, (m + 1) / 2) variable
    lies between (i - 1) / m and i / m.  Resamples vary less than samples, by the factor (m - 1) / m.
    """
    noise = generator.standard_normal((DRAWS, len(timings)))
    median, error, least = _spread(timings)
    return np.asarray(np.maximum(median + error * noise, least))


def draw_text_weights(texts: int, generator: np.random.Generator) -> Int64:
    """Return (draws, texts): how often each text counts if `texts` are drawn with replacement."""
    return np.asarray(generator.multinomial(texts, np.full(texts, 1 / texts), DRAWS))


def draw_ratios(above: Int64, below: Int64) -> Float64:
    """Return (draws,): a ratio of sums over texts, (J,) each, with the texts drawn with replacement."""
    weights = draw_text_weights(len(above), np.random.default_rng(SEED))
    return np.asarray((weights @ above) / (weights @ below))


def estimate(value: float, draws: Float64) -> Estimate:
    """Return a number with the interval that holds 95 % of its draws, and the number itself."""
    return estimates(np.array([value]), draws[:, None])[0]


def estimates(values: Float64, draws: Float64) -> list[Estimate]:
    """Return an estimate of each number, (numbers,), from its column of the draws, (draws, numbers)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    ends = zip(values.tolist(), np.minimum(values, low).tolist(), np.maximum(values, high).tolist(), strict=True)
    return [Estimate(*each) for each in ends]


def near_best(chosen: Float64, fastest: Float64) -> float:
    """Return the share of draws in which the chosen speed is nearly that of the fastest; both (draws,)."""
    return float((chosen >= NEAR * fastest).mean())


@lru_cache(maxsize=1024)
def _spread(timings: tuple[Timing, ...]) -> tuple[Float64, Float64, Float64]:
    """Return medians, their errors and the least samples; cached, because many operating points share them."""
    return (
        np.array([timing.median_s for timing in timings]),
        np.array([_bootstrap_error(np.sort(timing.samples_s)) for timing in timings]),
        np.array([timing.samples_s.min() for timing in timings]),
    )


def _bootstrap_error(ordered: Float64) -> float:
    weight = _median_weights(len(ordered))
    mean = weight @ ordered
    samples = len(ordered)
    return float(np.sqrt(weight @ (ordered - mean) ** 2 * samples / max(1, samples - 1)))


@cache
def _median_weights(count: int) -> Float64:
    """Return (count,): the probability that each of `count` ordered samples is the median of a resample."""
    from scipy.special import betainc

    half = (count + 1) / 2
    return np.asarray(np.diff(betainc(half, half, np.arange(count + 1) / count)))
