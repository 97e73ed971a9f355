"""Draws of measured times: their spread is that of the samples, and of neighbours where samples are few."""

import numpy as np
import pytest

from treeopt.planner.resampling import draw_medians
from treeopt.records.latency import Timing


def relative_spread(*timings: Timing) -> list[float]:
    draws = draw_medians(timings, np.random.default_rng(0))
    return (draws.std(0) / np.median(draws, 0)).tolist()


NOISY = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]


def test_a_single_sample_is_as_uncertain_as_the_samples_of_other_times() -> None:
    _, single, double = relative_spread(Timing(NOISY), Timing([2.0]), Timing([3.0, 3.0]))
    spread = np.std(NOISY, ddof=1)
    assert single == pytest.approx(spread, rel=0.1)
    assert double == pytest.approx(spread / np.sqrt(2), rel=0.1)


def test_draws_of_a_single_sample_lie_on_both_sides() -> None:
    draws = draw_medians((Timing(NOISY), Timing([2.0])), np.random.default_rng(0))[:, 1]
    assert 0.4 < (draws < 2.0).mean() < 0.6
    assert draws.min() > 0


def test_times_without_repeated_samples_are_exact() -> None:
    assert relative_spread(Timing([1.0]), Timing([2.0])) == [0.0, 0.0]


def test_repeated_samples_keep_their_error() -> None:
    alone = relative_spread(Timing(NOISY))
    assert relative_spread(Timing(NOISY), Timing([2.0]))[0] == pytest.approx(alone[0], rel=0.1)
