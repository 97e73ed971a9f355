"""Timing many sizes: exact statistics under a pretended clock, fair rounds, points where a curve bends."""

from collections import Counter
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiler.pretended import FakeClock
from tests.support import recorded
from tests.support.drawn import examples
from treeopt.profiler import Checkpoint, MonotonicClock, clock_for
from treeopt.profiler.clock import MOST_REPEATS, WarmUp, repeat_without_captures
from treeopt.profiler.latency.curve import PILOT_ROUNDS, LatencyCurve, Passes
from treeopt.profiler.latency.rounds import Recorder, first_points, next_point
from treeopt.profiler.latency.rounds import time_rounds as timed_rounds_into
from treeopt.runtime.models import runner
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.runner import GraphPool, Runner

WARM_UP_CALLS = WarmUp().first_calls


def time_rounds(kind, works, rounds, clock, checkpoint, step=lambda: None, **more):
    timed_rounds_into(kind, works, rounds, Recorder(clock, checkpoint, step), **more)


def memory():
    return Checkpoint(None, "")


class Bench:
    """Works that note their size, and a clock that pretends what a curve says about the size last called."""

    def __init__(self, curve, *warm_up):
        self.called = []
        self.timed = []
        self.clock = FakeClock(lambda: self.timed.append(self.called[-1]) or curve(self.called[-1]), *warm_up)

    def work(self, size):
        return lambda: self.called.append(size)

    def works(self, sizes):
        return {size: self.work(size) for size in sizes}


class TestClock:
    def test_the_fake_clock_makes_the_call(self):
        calls = []
        assert FakeClock(lambda: 0.25).time_s(lambda: calls.append(1)) == 0.25
        assert calls == [1]

    def test_the_monotonic_clock_reads_real_seconds(self, monkeypatch):
        times = iter([10.0, 10.5])
        monkeypatch.setattr("time.perf_counter", lambda: next(times))
        assert MonotonicClock().time_s(lambda: None) == 0.5

    def test_the_clock_of_a_cpu(self):
        assert isinstance(clock_for(torch.device("cpu")), MonotonicClock)


class TestTimedRounds:
    def test_samples_are_what_the_clock_says(self):
        bench, checkpoint = Bench(lambda size: size + 0.5), memory()
        time_rounds("verify", bench.works([1, 2, 4]), 5, bench.clock, checkpoint)
        assert checkpoint.samples("verify") == {1: [1.5] * 5, 2: [2.5] * 5, 4: [4.5] * 5}

    def test_every_round_visits_every_size_once_in_a_new_order(self):
        bench, sizes = Bench(lambda _: 1.0), [1, 2, 3, 4, 6, 8]
        time_rounds("verify", bench.works(sizes), 10, bench.clock, memory())
        rounds = np.reshape(bench.timed, (10, len(sizes))).tolist()
        assert all(sorted(visited) == sizes for visited in rounds)
        assert len(set(map(tuple, rounds))) > 5

    def test_no_order_repeats_from_call_to_call(self):
        bench, sizes, checkpoint = Bench(lambda _: 1.0), [1, 2, 3, 4, 6, 8], memory()
        recorder = Recorder(bench.clock, checkpoint)
        for rounds in range(1, 11):
            timed_rounds_into("verify", bench.works(sizes), rounds, recorder)
        orders = np.reshape(bench.timed, (10, len(sizes))).tolist()
        assert len(set(map(tuple, orders))) == 10

    def test_drift_hits_all_sizes_alike(self):
        ticks = iter(range(60))
        bench, checkpoint = Bench(lambda _: 1.0 + next(ticks) // 6), memory()
        time_rounds("verify", bench.works(range(1, 7)), 10, bench.clock, checkpoint)
        assert {tuple(samples) for samples in checkpoint.samples("verify").values()} == {tuple(range(1, 11))}

    def test_warm_up_calls_are_not_timed(self):
        bench = Bench(lambda _: 1.0, WarmUp())
        time_rounds("verify", bench.works([1, 5]), 4, bench.clock, memory())
        warm_up, rounds = np.split(np.array(bench.called), [2 * WARM_UP_CALLS])
        assert Counter(warm_up.tolist()) == {1: WARM_UP_CALLS, 5: WARM_UP_CALLS}
        assert Counter(bench.timed) == {1: 4, 5: 4}
        assert rounds.tolist() == np.repeat(bench.timed, 2).tolist()  # each behind an untimed call of the same size

    def test_prepare_is_not_timed(self):
        bench, prepared = Bench(lambda _: 1.0, WarmUp()), []

        def prepare(size):
            prepared.append((size, len(bench.called)))

        time_rounds("step", bench.works([1, 2]), 3, bench.clock, memory(), prepare=prepare)
        warm_up = 2 * WARM_UP_CALLS
        assert prepared[:warm_up] == [(size, before) for before, size in enumerate(bench.called[:warm_up])]
        assert prepared[warm_up:] == [(size, warm_up + 2 * before) for before, size in enumerate(bench.timed)]

    def test_short_works_are_led_by_several_calls_and_prepared_before_each(self):
        bench, events = Bench(lambda _: 0.004, WarmUp()), []

        def note(name):
            return lambda size: events.append((name, size))

        works = {1: lambda: (bench.called.append(1), events.append(("work", 1)))}
        time_rounds("step", works, 2, bench.clock, memory(), prepare=note("prepare"), lead=note("lead"))
        first = [("prepare", 1), ("work", 1)] * WARM_UP_CALLS
        leads = [[("prepare", 1), ("lead", 1)] * count for count in (1, 3)]  # 0.01 s of calls of 0.004 s
        assert events == [*first, *leads[0], ("work", 1), *leads[1], ("work", 1)]

    def test_without_warm_up_every_call_is_prepared_and_timed(self):
        bench, prepared = Bench(lambda _: 1.0), []
        time_rounds("step", bench.works([1, 2]), 3, bench.clock, memory(), prepare=prepared.append)
        assert bench.called == bench.timed == prepared

    def test_step_is_called_once_for_every_sample(self):
        bench, steps = Bench(lambda _: 1.0), []
        time_rounds(
            "verify", bench.works([1, 2, 3]), 4, bench.clock, memory(), step=lambda: steps.append(len(bench.timed))
        )
        assert steps == list(range(1, 13))

    def test_samples_that_are_there_count(self):
        bench, checkpoint = Bench(lambda _: 1.0), memory()
        for size, count in ((1, 4), (2, 1), (7, 3)):
            for _ in range(count):
                checkpoint.append("verify", size, (9.0,))
        checkpoint.append("draft", 3, (9.0,))
        time_rounds("verify", bench.works([1, 2, 3]), 3, bench.clock, checkpoint)
        assert Counter(bench.timed) == {2: 2, 3: 3}
        assert {size: len(samples) for size, samples in checkpoint.samples("verify").items()} == {
            1: 4,
            2: 3,
            3: 3,
            7: 3,
        }

    def test_the_order_is_the_same_every_time(self):
        first, second = Bench(lambda _: 1.0), Bench(lambda _: 1.0)
        for bench in (first, second):
            time_rounds("verify", bench.works([1, 2, 3, 4]), 6, bench.clock, memory())
        assert first.timed == second.timed

    @pytest.mark.parametrize("stop_after", [0, 1, 5, 11, 17])
    def test_an_interrupted_run_measures_only_what_is_missing(self, tmp_path, stop_after):
        path = tmp_path / "checkpoint"

        def until_interrupted(_):
            if len(bench.timed) > stop_after:
                raise KeyboardInterrupt
            return 1.0

        bench = Bench(until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            time_rounds("verify", bench.works([1, 2, 3]), 6, bench.clock, Checkpoint(path, "h"))
        bench, checkpoint = Bench(lambda _: 2.0), Checkpoint(path, "h", resume=True)
        time_rounds("verify", bench.works([1, 2, 3]), 6, bench.clock, checkpoint)
        samples = checkpoint.samples("verify")
        assert [len(each) for each in samples.values()] == [6, 6, 6]
        assert np.concatenate([*samples.values()]).tolist().count(1.0) == stop_after
        assert len(bench.timed) == 18 - stop_after

    def test_an_interruption_inside_a_work_keeps_what_was_measured(self, tmp_path):
        calls = []

        def work():
            calls.append(1)
            if len(calls) == WARM_UP_CALLS + 6:  # the third that is timed
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            time_rounds(
                "verify", {1: work}, 9, FakeClock(lambda: 1.0, WarmUp()), Checkpoint(tmp_path / "checkpoint", "h")
            )
        assert Checkpoint(tmp_path / "checkpoint", "h", resume=True).samples("verify") == {1: [1.0, 1.0]}


class TestGraphs:
    @pytest.mark.parametrize("lead", [None, lambda _: None], ids=["led by itself", "led by nothing"])
    def test_captures_are_not_timed(self, make_model, monkeypatch, lead):
        monkeypatch.setattr(runner, "SHORTEST_KV_LENGTH", 16)
        monkeypatch.setattr(GraphPool, "capture", recorded.capture)
        model, kinds = make_model(seed=1), []
        passes = Runner(model, max_nodes=1, pool=GraphPool(torch.device("cpu")))
        (cache,) = model.new_caches(64, 1)
        lengths = cycle([3, 20, 40])  # of three shapes, which come in turn
        before = 0

        def work():
            nonlocal before
            before, cache.length = Runner.total_captures, next(lengths)
            passes.forward([SequenceInput.causal(cache, torch.tensor([1]))])

        clock = FakeClock(lambda: kinds.append("replayed" if Runner.total_captures == before else "not") or 1.0)
        checkpoint = memory()
        time_rounds("kind", {1: work}, 4, clock, checkpoint, first_calls=1, lead=lead)
        replayed = [kind == "replayed" for kind in kinds]
        assert len(checkpoint.samples("kind")[1]) == 4
        assert not all(replayed)
        assert sum(replayed) == 4

    def test_a_call_that_captures_every_time_ends(self):
        calls = []

        def call():
            Runner.total_captures += 1
            calls.append(1)
            return len(calls)

        assert repeat_without_captures(call) == MOST_REPEATS + 1


class TestPoints:
    @pytest.mark.parametrize(
        ("most", "points"),
        [
            (1, [1]),
            (2, [1, 2]),
            (5, [1, 2, 3, 4, 5]),
            (7, [1, 2, 3, 4, 5, 6, 7]),
            (64, [*range(1, 13), 16, 24, 32, 48, 64]),
            (100, [*range(1, 13), 16, 24, 32, 48, 64, 96, 100]),
        ],
    )
    def test_first_points(self, most, points):
        assert first_points(most) == points

    @given(st.integers(1, 5000))
    def test_first_points_grow_by_half_at_most(self, most):
        points = np.array(first_points(most))
        assert (points[0], points[-1]) == (1, most)
        assert np.all(np.diff(points) > 0)
        assert np.all(points[1:] <= np.maximum(2 * points[:-1], 2))
        assert np.all(points[3:] <= 1.5 * points[2:-1])

    @pytest.mark.parametrize("kink", [5, 37, 65, 100, 201, 255])
    def test_next_points_close_in_on_a_kink(self, kink):
        tokens = first_points(256)
        for _ in range(8):
            tokens = sorted([*tokens, next_point(tokens, [time_with_kink(count, kink) for count in tokens])])
        assert len(set(tokens)) == len(tokens)
        assert min(abs(count - kink) for count in tokens) <= 1

    def test_a_large_kink_comes_before_a_small_one(self):
        tokens = [1, 2, 10, 20, 30, 40, 50]
        assert next_point(tokens, np.interp(tokens, [1, 15, 50], [1.0, 1.0, 2.0]).tolist()) == 15
        assert next_point(tokens, np.interp(tokens, [1, 15, 45, 50], [1.0, 1.0, 1.5, 4.0]).tolist()) in (35, 45)

    def test_nothing_is_left_between_neighbours(self):
        assert next_point([1, 2, 3, 4], [1.0, 5.0, 2.0, 9.0]) is None
        assert next_point([1, 2, 3, 5], [1.0, 5.0, 2.0, 9.0]) == 4

    def test_two_points_have_no_bend(self):
        assert next_point([1, 9], [1.0, 2.0]) is None

    @settings(max_examples=examples(60), deadline=None)
    @given(st.lists(st.floats(0.01, 10), min_size=7, max_size=7))
    def test_a_new_point_is_new_and_inside(self, seconds):
        tokens = [1, 2, 4, 6, 11, 12, 20]
        point = next_point(tokens, seconds)
        assert point not in tokens
        assert 1 < point < 20


def time_with_kink(tokens, kink):
    return 1.0 + 0.05 * max(0, tokens - kink)


def latency_table(kind, make_work, most, *, rounds, extra_points, clock, checkpoint):
    """Return a curve as profiles without a time budget measure it."""
    curve = LatencyCurve(kind, lambda: Passes(make_work), most, Recorder(clock, checkpoint))
    curve.pilot(rounds)
    while curve.added < extra_points and curve.bend(rounds):
        pass
    curve.sample(rounds)
    return curve.table()


class TestCurve:
    KINKS = ([1, 37, 150, 256], [1.0, 1.2, 6.0, 6.4])

    def curve(self, tokens):
        return float(np.interp(tokens, *self.KINKS))

    def measured(self, extra_points, rounds=7, checkpoint=None, curve=None):
        bench = Bench(curve or self.curve)
        table = latency_table(
            "verify",
            bench.work,
            256,
            rounds=rounds,
            extra_points=extra_points,
            clock=bench.clock,
            checkpoint=checkpoint or memory(),
        )
        return bench, table

    def test_a_curve_with_kinks_is_reproduced(self):
        everywhere = np.arange(1, 257)
        truth = np.array([self.curve(count) for count in everywhere])
        _, plain = self.measured(0)
        _, refined = self.measured(8)
        _, exact = self.measured(16)
        errors = [np.abs(table.seconds(everywhere) / truth - 1).max() for table in (plain, refined, exact)]
        assert errors[0] > 0.05
        assert errors[1] < 0.03
        assert errors[2] < 1e-12
        assert {37, 150} <= set(exact.tokens.tolist())

    @pytest.mark.parametrize("rounds", [1, 2, PILOT_ROUNDS, 9])
    def test_every_point_has_all_rounds(self, rounds):
        bench, table = self.measured(5, rounds)
        assert len(table.tokens) == len(first_points(256)) + 5
        assert {len(timing.samples_s) for timing in table.timings} == {rounds}
        assert Counter(bench.timed) == dict.fromkeys(table.tokens.tolist(), rounds)

    def test_statistics_are_exact(self):
        seen = Counter()

        def noisy(tokens):
            seen[tokens] += 1
            return self.curve(tokens) * (1 + 0.01 * (seen[tokens] % 5) + 10.0 * (seen[tokens] == 4))

        _, table = self.measured(0, rounds=9, curve=noisy)
        factors = [1.01, 1.02, 1.03, 11.04, 1.0, 1.01, 1.02, 1.03, 1.04]
        for tokens, timing in zip(table.tokens, table.timings, strict=True):
            np.testing.assert_allclose(timing.samples_s, self.curve(tokens) * np.array(factors))
        np.testing.assert_allclose(table.medians_s, [self.curve(tokens) * 1.02 for tokens in table.tokens])

    def test_every_count_is_measured_where_there_are_few(self):
        bench = Bench(lambda size: 1.0 + size)
        table = latency_table(
            "verify", bench.work, 7, rounds=3, extra_points=50, clock=bench.clock, checkpoint=memory()
        )
        assert table.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize("stop_after", [2, 40, 52, 60, 100])
    def test_an_interrupted_table_measures_only_what_is_missing(self, tmp_path, stop_after):
        _, whole = self.measured(5)
        path = tmp_path / "checkpoint"

        def until_interrupted(tokens):
            timed.append(tokens)
            if len(timed) > stop_after:
                raise KeyboardInterrupt
            return self.curve(tokens)

        timed = []
        with pytest.raises(KeyboardInterrupt):
            self.measured(5, checkpoint=Checkpoint(path, "h"), curve=until_interrupted)
        bench, resumed = self.measured(5, checkpoint=Checkpoint(path, "h", resume=True))
        assert resumed.tokens.tolist() == whole.tokens.tolist()
        assert {len(timing.samples_s) for timing in resumed.timings} == {7}
        assert len(bench.timed) + stop_after == 7 * len(whole.tokens)

    def test_a_finished_table_is_not_measured_again(self, tmp_path):
        path = tmp_path / "checkpoint"
        _, whole = self.measured(5, checkpoint=Checkpoint(path, "h"))
        bench, again = self.measured(5, checkpoint=Checkpoint(path, "h", resume=True), curve=lambda _: 99.0)
        assert bench.timed == []
        assert again.tokens.tolist() == whole.tokens.tolist()
        assert again.medians_s.tolist() == whole.medians_s.tolist()
