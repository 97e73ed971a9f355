"""A latency curve: counts are added where it bends, and intervals contain every curve that does not fall."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiler.pretended import FakeClock
from tests.support.drawn import examples
from treeopt.profiler import Checkpoint
from treeopt.profiler.budget import NO_DEADLINE
from treeopt.profiler.latency import curve as curve_module
from treeopt.profiler.latency.curve import PILOT_ROUNDS, SMALL_COUNTS, LatencyCurve, Passes
from treeopt.profiler.latency.rounds import Recorder, coarse_points

MOST = 200
FIRST = sorted({*SMALL_COUNTS, *coarse_points(MOST)})


def make_curve(seconds, checkpoint=None, most=MOST, rounds=1):
    """Return a curve of passes that take `seconds(tokens)`, and the list of timed counts."""
    timed = []
    clock = FakeClock(lambda: seconds(timed[-1]))
    recorder = Recorder(clock, checkpoint or Checkpoint(None, ""), most_samples=rounds)
    return LatencyCurve("verify", lambda: Passes(lambda tokens: lambda: timed.append(tokens)), most, recorder), timed


def bend(curve, times):
    """Time the first counts of a curve, and add up to `times` where it bends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve_module, "EXTRA_COUNTS", times)
        curve.coarse(MOST, NO_DEADLINE)
        curve.add_counts(NO_DEADLINE)
    return curve


def staircase(edges):
    return lambda tokens: 1.0 + 0.001 * tokens + 0.5 * sum(tokens > edge for edge in edges)


def with_kinks(tokens):
    return float(np.interp(tokens, [1, 37, 150, 200], [1.0, 1.2, 6.0, 6.4]))


class TestInterval:
    @settings(max_examples=examples(40), deadline=None)
    @given(st.lists(st.floats(0, 0.1) | st.just(0.0) | st.just(5.0), min_size=MOST, max_size=MOST), st.integers(0, 12))
    def test_interval_contains_every_curve_that_does_not_fall(self, rises, times):
        truth = 1.0 + np.cumsum(rises)
        table = bend(make_curve(lambda tokens: float(truth[tokens - 1]))[0], times).table()
        low, high = table.interval_s(np.arange(1, MOST + 1))
        assert np.all(low <= truth)
        assert np.all(truth <= high)
        np.testing.assert_array_equal(table.medians_s, truth[table.tokens - 1])

    def test_interval_may_miss_a_curve_that_falls(self):
        table = bend(make_curve(lambda tokens: 1.0 - 0.5 * (tokens == 150))[0], 0).table()
        assert 150 not in table.tokens
        assert table.interval_s(150)[0] == 1.0


class TestBend:
    @pytest.mark.parametrize("edges", [(64,), (37, 100)])
    def test_counts_are_added_next_to_every_step(self, edges):
        table = bend(make_curve(staircase(edges))[0], 14 * len(edges)).table()
        for edge in edges:
            assert {edge, edge + 1} <= set(table.tokens.tolist())
        added = np.setdiff1d(bend(make_curve(staircase((64,)))[0], 8).table().tokens, FIRST)
        assert np.sum(np.abs(added - 64) <= 16) >= 5

    def test_kinks_are_reproduced(self):
        everywhere = np.arange(1, MOST + 1)
        truth = np.array([with_kinks(count) for count in everywhere])
        tables = [bend(make_curve(with_kinks)[0], times).table() for times in (0, 8, 16)]
        errors = [np.abs(table.seconds(everywhere) / truth - 1).max() for table in tables]
        assert errors[0] > 0.05
        assert errors[1] < 0.03
        assert errors[2] < 1e-12

    def test_refining_adds_a_count_unless_interpolation_is_exact_enough(self):
        for seconds, added in ((lambda tokens: 1.0 + 0.5 * tokens, 0), (staircase((64,)), 1)):
            curve = bend(make_curve(seconds)[0], 0)
            curve.refine({64}, NO_DEADLINE, 1)
            assert len(curve.table().tokens) - len(FIRST) == added

    def test_every_count_can_be_added(self):
        curve = bend(make_curve(lambda tokens: 1.0 + tokens % 2, most=30, rounds=2)[0], 30)
        assert curve.table().tokens.tolist() == list(range(1, 31))


class TestRefinement:
    @pytest.mark.parametrize("counts", [{9, 11}, {9}, {150}, {190, 199}])
    def test_counts_that_are_added_while_the_machine_is_fast_are_not_faster(self, counts):
        slowdown = 2.0
        curve, _ = make_curve(lambda tokens: slowdown * (1.0 + 0.01 * tokens), rounds=9)
        curve.coarse(8, NO_DEADLINE)
        slowdown = 1.0
        for _ in range(2):
            curve.refine(counts, NO_DEADLINE, 9)
        table = curve.table()
        assert counts < set(table.tokens.tolist())
        np.testing.assert_allclose(table.medians_s / (1.0 + 0.01 * table.tokens), table.medians_s[0] / 1.01, rtol=0.02)


class TestRounds:
    @pytest.mark.parametrize("rounds", [1, PILOT_ROUNDS, 9])
    def test_every_count_has_all_rounds(self, rounds):
        curve, timed = make_curve(with_kinks, rounds=rounds)
        bend(curve, 5).sample(rounds)
        tokens, tries = curve.table().tokens.tolist(), 1  # each is tried before it is timed
        assert len(tokens) == len(FIRST) + 5
        assert {len(timing.samples_s) for timing in curve.table().timings} == {rounds}
        assert Counter(timed) == dict.fromkeys(tokens, rounds + tries)

    @pytest.mark.parametrize("stop_after", [2, 52, 100])
    def test_resumed_curve_times_only_what_is_missing(self, tmp_path, stop_after):
        def measure(seconds, checkpoint=None):
            curve, _ = make_curve(lambda tokens: calls.append(tokens) or seconds(tokens), checkpoint, rounds=7)
            bend(curve, 5).sample(7)
            return curve.table()

        def interrupt(tokens):
            if len(calls) > stop_after:
                raise KeyboardInterrupt
            return with_kinks(tokens)

        calls, path = [], tmp_path / "checkpoint"
        whole = measure(with_kinks)
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            measure(interrupt, Checkpoint(path, "h"))
        calls.clear()
        resumed = measure(with_kinks, Checkpoint(path, "h", resume=True))
        assert resumed.tokens.tolist() == whole.tokens.tolist()
        assert {len(timing.samples_s) for timing in resumed.timings} == {7}
        assert len(calls) + stop_after == 7 * len(whole.tokens)
