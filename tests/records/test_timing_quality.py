"""Precision, drift and spread of timings, compared with values computed by hand."""

import statistics
from itertools import pairwise

import numpy as np
import pytest

from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.step_latency import StepLatency
from treeopt.records.timing_quality import (
    MIN_SAMPLES,
    estimate_drift,
    estimate_precision,
    interpolation_errors,
    relative_iqr,
)

STEADY = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.0]


def table(*samples, tokens=None):
    return LatencyTable(tokens or range(1, len(samples) + 1), [Timing(item) for item in samples])


def latency(samples, **changes):
    curve = table(samples, samples, samples)
    given = {"context_tokens": 256, "batch_size": 2, "verify": curve, "draft": curve, "overhead": Timing([1e-3])}
    return StepLatency(**given | changes)


class TestInterpolationErrors:
    def test_error_is_quarter_of_width_times_slope_change(self):
        # slopes 0 and 1 per token: at either end of each line the slope changes by 1
        assert interpolation_errors([1, 5, 13], [2.0, 2.0, 10.0]).tolist() == [4 / 4 / 2, 8 / 4 / 2]

    def test_larger_slope_change_counts(self):
        result = interpolation_errors([1, 3, 5, 7], [1.0, 1.0, 1.0, 5.0])  # slopes 0, 0, 2
        assert result.tolist() == [0.0, 2 * 2 / 4, 2 * 2 / 4]

    def test_adjacent_counts_have_no_error(self):
        assert interpolation_errors([1, 2, 4], [1.0, 2.0, 2.0]).tolist() == [0.0, 1 * 2 / 4 / 2]

    @pytest.mark.parametrize("tokens", [[1], [1, 9]])
    def test_fewer_than_three_counts_have_no_error(self, tokens):
        assert interpolation_errors(tokens, [1.0] * len(tokens)).tolist() == [0.0] * (len(tokens) - 1)

    @pytest.mark.parametrize("kink", [20, 28, 40])
    def test_error_bounds_true_error_of_kink(self, kink):
        tokens, truth = [1, 20, 40, 60], lambda count: 1.0 + 0.1 * max(0, count - kink)
        result = interpolation_errors(tokens, [truth(count) for count in tokens])
        for place, (low, high) in enumerate(pairwise(tokens)):
            inside = np.arange(low, high + 1)
            off = np.abs([np.interp(n, tokens, [truth(t) for t in tokens]) / truth(n) - 1 for n in inside.tolist()])
            assert off.max() <= 2 * result[place] + 1e-12


class TestPrecision:
    def test_of_a_table_by_hand(self):
        # fewer than 6 samples: the interval is from the least to the most
        result = estimate_precision(table([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], [8.0, 10.0, 10.0], tokens=[1, 3, 5]))
        assert result.at_counts == pytest.approx(statistics.median([1.0 / 2.0, 0.0, 1.0 / 10.0]))
        # slopes 1 and 3: the bend is 2, the widths 2, over the smaller of both ends
        assert result.between_counts == pytest.approx(max(2 * 2 / 4 / 2.0, 2 * 2 / 4 / 4.0))

    def test_counts_with_one_sample_have_no_precision(self):
        assert estimate_precision(table([2.0], [3.0])).at_counts is None
        assert estimate_precision(table([2.0], [3.0, 3.6])).at_counts == pytest.approx(0.3 / 3.3)

    def test_many_samples_use_median_interval(self):
        ordered = [float(value) for value in range(1, 26)]
        result = estimate_precision(table(ordered))  # of 25 samples the 8th to the 18th enclose the median
        assert result.at_counts == pytest.approx((18 - 8) / 2 / 13)


class TestDrift:
    def test_second_half_over_first_half(self):
        assert estimate_drift([Timing([2.0, 2.0, 2.0, 3.0, 3.0, 3.0])]) == 0.5
        assert estimate_drift([Timing([3.0, 3.0, 3.0, 2.0, 2.0, 2.0])]) == pytest.approx(-1 / 3)

    def test_middle_sample_belongs_to_second_half(self):
        samples = [1.0, 2.0, 4.0, 10.0, 20.0, 30.0, 400.0]
        expected = statistics.median(samples[3:]) / statistics.median(samples[:3]) - 1
        assert estimate_drift([Timing(samples)]) == pytest.approx(expected)

    def test_median_over_all_times(self):
        timings = [Timing([1.0] * 3 + [1.0 + change] * 3) for change in (0.1, 0.3, 9.0)]
        assert estimate_drift(timings) == pytest.approx(0.3)

    def test_too_few_samples_give_0(self):
        assert estimate_drift([Timing([1.0, 9.0, 9.0])]) == 0.0
        assert relative_iqr([Timing([1.0, 9.0, 9.0])]) == 0.0
        few, enough = Timing([1.0, 9.0, 9.0]), Timing([1.0] * MIN_SAMPLES)
        assert estimate_drift([few, few, enough]) == 0.0


class TestRelativeIqr:
    def test_interquartile_range_over_median(self):
        samples = [float(value) for value in range(10, 21)]  # quartiles 12.5 and 17.5 of a median of 15
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        assert relative_iqr([Timing(samples)]) == pytest.approx((high - low) / 15)

    def test_median_over_all_times(self):
        assert relative_iqr([Timing([1.0] * 6), Timing([1.0] * 6), Timing([1.0, 9.0] * 3)]) == 0.0
