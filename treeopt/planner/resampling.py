"""Estimates from measurements: medians of times and sums over sequences, as observed or in many draws.

All trees and options share the same draws, so that they can be compared within a draw.
"""

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.records.latency import Estimate, Timing

DRAWS = 1000
SEED = 20240219
NEAR = 0.99
"""Fraction of the best speed that counts as equally good."""
FEWEST_SAMPLES = 3
"""Times with fewer samples share the spread of the others."""
MOST_SPREAD = 0.3
"""Limit of the shared spread, so that no draw of a time comes near 0."""


class Estimator:
    """Turns measurements into numbers: every measurement as it is.  In subclasses leading axes hold draws."""

    def medians_s(self, timings: tuple[Timing, ...]) -> Float64:
        """Return (…, len(timings)): seconds."""
        return np.array([timing.median_s for timing in timings])

    def sequence_weights(self, sequences: int) -> Int64:
        """Return (…, sequences): how often each sequence counts."""
        return np.ones(sequences, np.int64)


OBSERVED = Estimator()


class Resampled(Estimator):
    """Bootstrap draws of the measurements, (draws, …)."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        # cached, because the same prompts were decoded at every context length
        self._weights: Callable[[int], Int64] = cache(lambda sequences: draw_sequence_weights(sequences, generator))

    def medians_s(self, timings: tuple[Timing, ...]) -> Float64:
        return draw_medians(timings, self._generator)

    def sequence_weights(self, sequences: int) -> Int64:
        return self._weights(sequences)


def draw_medians(timings: tuple[Timing, ...], generator: np.random.Generator) -> Float64:
    """Return (draws, len(timings)): normal draws of each median, with its bootstrap error.

    The variance of the median over all resamples has a closed form (Maritz and Jarrett, 1978): the i-th of m ordered
    samples is the median of a resample with the probability that a Beta((m + 1) / 2, (m + 1) / 2) variable lies between
    (i - 1) / m and i / m.  Resamples vary less than samples, by the factor (m - 1) / m.
    """
    deviates = generator.standard_normal((DRAWS, len(timings)))
    median, error, least = _medians_and_errors(timings)
    return np.asarray(np.maximum(median + error * deviates, least))


def draw_sequence_weights(sequences: int, generator: np.random.Generator) -> Int64:
    """Return (draws, sequences): how often each sequence is drawn, with replacement."""
    return np.asarray(generator.multinomial(sequences, np.full(sequences, 1 / sequences), DRAWS))


def draw_ratios(numerators: Int64, denominators: Int64) -> Float64:
    """Return (draws,): a ratio of sums over sequences, (J,) each, with the sequences drawn with replacement."""
    weights = draw_sequence_weights(len(numerators), np.random.default_rng(SEED))
    return np.asarray((weights @ numerators) / (weights @ denominators))


def estimate(value: float, draws: Float64) -> Estimate:
    """Return a number with the interval that contains the number and 95 % of its draws."""
    return estimates(np.array([value]), draws[:, None])[0]


def estimates(values: Float64, draws: Float64) -> list[Estimate]:
    """Return an estimate of each number, (numbers,), from its column of the draws, (draws, numbers)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    ends = zip(values.tolist(), np.minimum(values, low).tolist(), np.maximum(values, high).tolist(), strict=True)
    return [Estimate(*numbers) for numbers in ends]


def near_best(chosen: Float64, fastest: Float64) -> float:
    """Return the fraction of draws in which the chosen speed is nearly the fastest; both (draws,)."""
    return float((chosen >= NEAR * fastest).mean())


@lru_cache(maxsize=1024)
def _medians_and_errors(timings: tuple[Timing, ...]) -> tuple[Float64, Float64, Float64]:
    """Return medians, their errors and lower bounds; cached, because many operating points share them.

    Times with fewer than `FEWEST_SAMPLES` samples have at least the error that the spread of the other times implies.
    """
    medians = np.array([timing.median_s for timing in timings])
    errors = np.array([_bootstrap_error(np.sort(timing.samples_s)) for timing in timings])
    least = np.array([timing.samples_s.min() for timing in timings])
    samples = np.array([len(timing.samples_s) for timing in timings])
    pooled = np.where(samples < FEWEST_SAMPLES, _common_spread(timings) * medians / np.sqrt(samples), 0.0)
    return medians, np.maximum(errors, pooled), np.minimum(least, medians - 2 * pooled)


def _common_spread(timings: tuple[Timing, ...]) -> float:
    """Return the median relative standard deviation of times with enough samples, at most `MOST_SPREAD`; 0 without any."""
    spreads = [
        timing.samples_s.std(ddof=1) / timing.median_s
        for timing in timings
        if len(timing.samples_s) >= FEWEST_SAMPLES and timing.median_s > 0
    ]
    return min(float(np.median(spreads)), MOST_SPREAD) if spreads else 0.0


def _bootstrap_error(ordered: Float64) -> float:
    weight, samples = _median_weights(len(ordered)), len(ordered)
    variance = weight @ (ordered - weight @ ordered) ** 2
    return float(np.sqrt(variance * samples / max(1, samples - 1)))


@cache
def _median_weights(count: int) -> Float64:
    """Return (count,): the probability that each of `count` ordered samples is the median of a resample."""
    from scipy.special import betainc

    half = (count + 1) / 2
    return np.asarray(np.diff(betainc(half, half, np.arange(count + 1) / count)))
