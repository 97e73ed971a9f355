"""One curve: added counts close in on what bends, and the stated interval holds wherever a curve does not fall."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiler.pretended import FakeClock
from tests.support.drawn import examples
from treeopt.profiler import Checkpoint
from treeopt.profiler.latency.curve import PILOT_ROUNDS, LatencyCurve, Passes
from treeopt.profiler.latency.rounds import Recorder, first_points
from treeopt.records.timing_quality import interpolation_errors

MOST = 200


def curve_of(seconds, checkpoint=None, most=MOST):
    last = [0]
    return LatencyCurve(
        "verify",
        lambda: Passes(lambda tokens: lambda: last.__setitem__(0, tokens)),
        most,
        Recorder(FakeClock(lambda: seconds(last[0])), checkpoint or Checkpoint(None, "")),
    )


def bent(seconds, times, **least):
    curve = curve_of(seconds)
    curve.pilot(1)
    for _ in range(times):
        if not curve.bend(1, **least):
            break
    return curve


@cache
def staircase(edges):
    return lambda tokens: 1.0 + 0.001 * tokens + 0.5 * sum(tokens > edge for edge in edges)


class TestInterval:
    @settings(max_examples=examples(40), deadline=None)
    @given(st.lists(st.floats(0, 0.1) | st.just(0.0) | st.just(5.0), min_size=MOST, max_size=MOST), st.integers(0, 12))
    def test_a_curve_that_never_falls_lies_within_it_everywhere(self, rises, times):
        truth = 1.0 + np.cumsum(rises)
        table = bent(lambda tokens: float(truth[tokens - 1]), times).table()
        low, high = table.interval_s(np.arange(1, MOST + 1))
        assert np.all(low <= truth)
        assert np.all(truth <= high)
        np.testing.assert_array_equal(table.medians_s, truth[table.tokens - 1])

    def test_a_curve_that_falls_in_between_need_not(self):
        table = bent(lambda tokens: 1.0 - 0.5 * (tokens == 150), 0).table()
        assert 150 not in table.tokens
        assert table.interval_s(150)[0] == 1.0


class TestBend:
    @pytest.mark.parametrize("edges", [(64,), (64, 128), (37, 100)])
    def test_counts_come_next_to_every_step(self, edges):
        table = bent(staircase(edges), 14 * len(edges)).table()
        for edge in edges:
            assert {edge, edge + 1} <= set(table.tokens.tolist())

    def test_counts_are_densest_near_a_step(self):
        tokens = bent(staircase((64,)), 8).table().tokens
        added = np.setdiff1d(tokens, first_points(MOST))
        assert np.sum(np.abs(added - 64) <= 16) >= 5

    def test_a_straight_line_needs_no_count_between(self):
        curve = bent(lambda tokens: 1.0 + 0.5 * tokens, 9, least_error=0.01)
        assert curve.added == 0

    def test_it_stops_where_lines_are_sure_enough(self):
        curve = bent(staircase((64, 128)), 10_000, least_error=0.01)
        table = curve.table()
        assert 0 < curve.added < 60
        assert interpolation_errors(table.tokens.tolist(), table.medians_s.tolist()).max() < 0.01
        everywhere = np.arange(1, MOST + 1)
        truth = [staircase((64, 128))(count) for count in everywhere.tolist()]
        np.testing.assert_allclose(table.seconds(everywhere), truth, rtol=0.01)

    def test_every_count_can_be_added(self):
        curve = curve_of(lambda tokens: 1.0 + tokens % 2, most=30)
        curve.pilot(2)
        while curve.bend(2):
            pass
        assert curve.table().tokens.tolist() == list(range(1, 31))


class TestCheckpoint:
    def test_counts_of_the_checkpoint_are_kept(self):
        checkpoint = Checkpoint(None, "")
        first = curve_of(staircase((64,)), checkpoint)
        first.pilot(9)
        first.bend(9)
        again = curve_of(lambda _: pytest.fail("timed again"), checkpoint)
        again.pilot(9)
        assert again.added == first.added == 1
        assert again.table().tokens.tolist() == first.table().tokens.tolist()
        assert {len(timing.samples_s) for timing in again.table().timings} == {PILOT_ROUNDS}
