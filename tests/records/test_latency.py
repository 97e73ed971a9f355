"""Timings and latency tables: medians, intervals, and interpolation."""

import time

import numpy as np
import pytest
from scipy.stats import binom

from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.latency import LatencyTable, Timing


class TestTiming:
    def test_median_of_odd_and_even_counts(self):
        assert Timing([0.3, 0.1, 0.2]).median_s == 0.2
        assert Timing([4, 1, 2, 8]).median_s == 3

    @pytest.mark.parametrize("samples", [[], [[0.1]], 0.1, [float("nan")], [0.1, float("inf")]], ids=str)
    def test_non_finite_samples_raise(self, samples):
        with pytest.raises(InvalidValueError, match="samples_s: expected at least one finite number"):
            Timing(samples)

    @pytest.mark.parametrize("samples", [[0.0], [0.1, -0.1]], ids=str)
    def test_only_differences_may_be_negative(self, samples):
        with pytest.raises(InvalidValueError, match=r"samples_s: expected seconds above 0\. Got -?0"):
            Timing(samples)
        assert Timing(samples, allow_negative=True).samples_s.tolist() == samples


class TestInterval:
    def test_interval_excludes_as_many_as_95_percent_allows(self):
        for count in [*range(6, 200), 500, 1023, 1024, 1025, 2500]:
            low, high = Timing(np.random.default_rng(count).permutation(np.arange(1.0, count + 1))).interval_s
            left_out = int(low) - 1
            assert high == count - left_out
            assert binom.cdf(left_out, count, 0.5) <= 0.025
            assert binom.cdf(left_out + 1, count, 0.5) > 0.025

    @pytest.mark.parametrize("count", range(1, 6))
    def test_few_samples_give_range(self, count):
        assert Timing(np.arange(1.0, count + 1)).interval_s == (1, count)

    def test_interval_of_many_samples_is_quick_and_normal(self):
        """Exact integers would take a minute; 1.96 standard deviations of the Binomial lie on each side."""
        count, start_s = 150_000, time.perf_counter()
        low, high = Timing(np.arange(1.0, count + 1)).interval_s
        assert time.perf_counter() - start_s < 5
        assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(count) / 2, abs=1.5)


def table(tokens, medians) -> LatencyTable:
    return LatencyTable(tokens, [Timing([median]) for median in medians])


class TestTable:
    def test_seconds_are_interpolated_linearly(self):
        result = table([1, 4, 8], [1.0, 4.0, 2.0])
        assert result.max_tokens == 8
        assert result.medians_s.tolist() == [1, 4, 2]
        assert result.seconds(np.arange(1, 9)).tolist() == [1, 2, 3, 4, 3.5, 3, 2.5, 2]
        assert float(result.seconds(2)) == 2
        assert result.seconds(np.array([[1, 8], [4, 4]])).tolist() == [[1, 2], [4, 4]]
        assert result.seconds(np.array([], np.int64)).shape == (0,)

    def test_interval_between_counts_spans_both(self):
        result = LatencyTable([1, 3, 4], [Timing([1.0, 2.0, 3.0]), Timing([3.0, 3.0, 7.0]), Timing([2.0])])
        low, high = result.interval_s(np.array([1, 2, 3, 4]))
        assert low.tolist() == [1, 1, 3, 2]
        assert high.tolist() == [3, 7, 7, 2]
        assert [float(end) for end in result.interval_s(2)] == [1, 7]

    @pytest.mark.parametrize("tokens", [1, 9, np.array([2, 9]), np.array([1, 8])], ids=str)
    def test_outside_measured_range_raises(self, tokens):
        result = table([2, 8], [1.0, 2.0])
        for ask in (result.seconds, result.interval_s):
            with pytest.raises(InfeasibleError, match=r"measured for 2 to 8 tokens\. Got [19]: ask for fewer"):
                ask(tokens)

    @pytest.mark.parametrize("tokens", [[], [0, 1], [-1, 1], [2, 2], [3, 1], [[1, 2]]], ids=str)
    def test_counts_that_do_not_increase_from_1_raise(self, tokens):
        with pytest.raises(InvalidValueError, match=r"tokens: expected increasing counts of at least 1\. Got "):
            table(tokens, [1.0] * len(tokens))

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_timings_must_match_counts(self, count):
        with pytest.raises(InvalidValueError, match=f"timings: expected 2, one per token count. Got {count}"):
            table([1, 2], [1.0] * count)
