"""Rounds of timed calls, and the counts that are timed."""

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
from treeopt.profiler.latency.rounds import Recorder, coarse_points, next_point, time_rounds
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.runner import GraphPool, Runner

WARM_UP_CALLS = WarmUp().first_calls


class Bench:
    """Works that record their key, and a clock whose seconds depend on the key of the last call."""

    def __init__(self, seconds=lambda _: 1.0, *warm_up, checkpoint=None, tick=lambda: None):
        self.called, self.timed = [], []
        self.checkpoint = checkpoint or Checkpoint(None, "")
        clock = FakeClock(lambda: self.timed.append(self.called[-1]) or seconds(self.called[-1]), *warm_up)
        self.recorder = Recorder(clock, self.checkpoint, tick)

    def time(self, keys, rounds, **options):
        works = {key: lambda key=key: self.called.append(key) for key in keys}
        time_rounds("verify", works, rounds, self.recorder, **options)
        return self.checkpoint.samples("verify")


def test_monotonic_clock_reads_real_seconds(monkeypatch):
    times = iter([10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    assert clock_for(torch.device("cpu")).time_s(lambda: None) == 0.5
    assert isinstance(clock_for(torch.device("cpu")), MonotonicClock)


class TestTimeRounds:
    def test_samples_are_the_seconds_of_the_clock(self):
        assert Bench(lambda key: key + 0.5).time([1, 2, 4], 5) == {1: [1.5] * 5, 2: [2.5] * 5, 4: [4.5] * 5}

    def test_every_round_has_every_key_in_a_new_order(self):
        bench, again, keys = Bench(), Bench(), [1, 2, 3, 4, 6, 8]
        for rounds in (5, 6, 7, 8, 9, 10):  # orders do not repeat from call to call either
            bench.time(keys, rounds)
            again.time(keys, rounds)
        orders = np.reshape(bench.timed, (10, len(keys))).tolist()
        assert all(sorted(order) == keys for order in orders)
        assert len(set(map(tuple, orders))) == 10
        assert again.timed == bench.timed

    def test_drift_affects_all_keys_alike(self):
        ticks = iter(range(60))
        samples = Bench(lambda _: 1.0 + next(ticks) // 6).time(range(1, 7), 10)
        assert {tuple(seconds) for seconds in samples.values()} == {tuple(range(1, 11))}

    def test_warm_up_and_preparation_are_not_timed(self):
        bench, prepared = Bench(lambda _: 1.0, WarmUp()), []
        bench.time([1, 5], 4, prepare=lambda key: prepared.append((key, len(bench.called))))
        first = 2 * WARM_UP_CALLS
        assert Counter(bench.called[:first]) == {1: WARM_UP_CALLS, 5: WARM_UP_CALLS}
        assert Counter(bench.timed) == {1: 4, 5: 4}
        assert bench.called[first:] == np.repeat(bench.timed, 2).tolist()  # each after an untimed call
        assert prepared[:first] == [(key, before) for before, key in enumerate(bench.called[:first])]
        assert prepared[first:] == [(key, first + 2 * before) for before, key in enumerate(bench.timed)]

    def test_short_works_have_several_lead_calls_each_prepared(self):
        clock, events = FakeClock(lambda: 0.004, WarmUp()), []

        def record(name):
            return lambda key: events.append((name, key))

        works = {1: lambda: events.append(("work", 1))}
        recorder = Recorder(clock, Checkpoint(None, ""))
        time_rounds("step", works, 2, recorder, prepare=record("prepare"), lead=record("lead"))
        first = [("prepare", 1), ("work", 1)] * WARM_UP_CALLS
        leads = [[("prepare", 1), ("lead", 1)] * count for count in (1, 3)]  # 0.01 s of calls of 0.004 s
        assert events == [*first, *leads[0], ("work", 1), *leads[1], ("work", 1)]

    def test_every_call_without_warm_up_is_prepared_timed_and_ticked(self):
        prepared, ticks = [], []
        bench = Bench(tick=lambda: ticks.append(len(bench.timed)))
        bench.time([1, 2], 3, prepare=prepared.append)
        assert bench.called == bench.timed == prepared
        assert ticks == [1, 2, 3, 4, 5, 6]

    def test_samples_in_the_checkpoint_count(self):
        bench = Bench()
        for key, count in ((1, 4), (2, 1), (7, 3)):
            for _ in range(count):
                bench.checkpoint.append("verify", key, (9.0,))
        bench.checkpoint.append("draft", 3, (9.0,))
        samples = bench.time([1, 2, 3], 3)
        assert Counter(bench.timed) == {2: 2, 3: 3}
        assert {key: len(seconds) for key, seconds in samples.items()} == {1: 4, 2: 3, 3: 3, 7: 3}

    @pytest.mark.parametrize("stop_after", [0, 5, 17])
    def test_resumed_rounds_time_only_what_is_missing(self, tmp_path, stop_after):
        path = tmp_path / "checkpoint"

        def interrupt(_):
            if len(bench.timed) > stop_after:
                raise KeyboardInterrupt
            return 1.0

        bench = Bench(interrupt, checkpoint=Checkpoint(path, "h"))
        with pytest.raises(KeyboardInterrupt):
            bench.time([1, 2, 3], 6)
        bench = Bench(lambda _: 2.0, checkpoint=Checkpoint(path, "h", resume=True))
        samples = bench.time([1, 2, 3], 6)
        assert [len(seconds) for seconds in samples.values()] == [6, 6, 6]
        assert np.concatenate([*samples.values()]).tolist().count(1.0) == stop_after
        assert len(bench.timed) == 18 - stop_after


class TestGraphs:
    @pytest.mark.parametrize("lead", [None, lambda _: None], ids=["led by itself", "led by nothing"])
    def test_captures_are_not_timed(self, make_model, monkeypatch, lead):
        recorded.replay_on_cpu(monkeypatch)
        model, replayed = make_model(seed=1), []
        passes = Runner(model, max_nodes=1, pool=GraphPool(torch.device("cpu")))
        (cache,) = model.new_caches(64, 1)
        lengths = cycle([3, 20, 40])  # of three shapes
        before = 0

        def work():
            nonlocal before
            before, cache.length = Runner.total_captures, next(lengths)
            passes.forward([SequenceInput.causal(cache, torch.tensor([1]))])

        clock = FakeClock(lambda: replayed.append(Runner.total_captures == before) or 1.0)
        checkpoint = Checkpoint(None, "")
        time_rounds("kind", {1: work}, 4, Recorder(clock, checkpoint), first_calls=1, lead=lead)
        assert len(checkpoint.samples("kind")[1]) == 4
        assert sum(replayed) == 4 < len(replayed)

    def test_call_that_captures_every_time_ends(self):
        calls = []

        def call():
            Runner.total_captures += 1
            calls.append(1)
            return len(calls)

        assert repeat_without_captures(call) == MOST_REPEATS + 1


class TestPoints:
    @given(st.integers(1, 5000))
    def test_points_grow_by_half_at_most(self, most):
        points = np.array(coarse_points(most))
        assert (points[0], points[-1]) == (1, most)
        assert np.all(np.diff(points) > 0)
        assert np.all(points[1:] <= np.maximum(2 * points[:-1], 2))
        assert np.all(points[3:] <= 1.5 * points[2:-1])

    def test_next_point_is_at_the_largest_kink(self):
        tokens = [1, 2, 10, 20, 30, 40, 50]
        assert next_point(tokens, np.interp(tokens, [1, 15, 50], [1.0, 1.0, 2.0]).tolist()) == 15
        assert next_point(tokens, np.interp(tokens, [1, 15, 45, 50], [1.0, 1.0, 1.5, 4.0]).tolist()) in (35, 45)

    def test_neighbours_and_two_points_have_no_next_point(self):
        assert next_point([1, 2, 3, 4], [1.0, 5.0, 2.0, 9.0]) is None
        assert next_point([1, 2, 3, 5], [1.0, 5.0, 2.0, 9.0]) == 4
        assert next_point([1, 9], [1.0, 2.0]) is None

    @settings(max_examples=examples(60), deadline=None)
    @given(st.lists(st.floats(0.01, 10), min_size=7, max_size=7))
    def test_next_point_is_new_and_inside(self, seconds):
        tokens = [1, 2, 4, 6, 11, 12, 20]
        point = next_point(tokens, seconds)
        assert point not in tokens
        assert 1 < point < 20
