"""How much is timed: fixed rounds in blocks; under a time budget first a little of everything, then what decides."""

import math
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tests.profiler.pretended import NO_WARM_UP, machine_and_pair, measure_grid
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.budget import SPENT, Budget, Deadline
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.curve import PILOT_ROUNDS, STEP_ROUNDS
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.profiler.latency.point import COARSE_TOKENS, COARSE_WIDTH
from treeopt.profiler.latency.rounds import Recorder, coarse_points
from treeopt.profiler.latency.steps import HOST_STEPS
from treeopt.runtime.decoding.step import Stepper

CONTEXT, MOST = 30, 160
SETTINGS = Settings(context_tokens=(CONTEXT,), max_tokens=MOST, time_budget_s=60.0)


def verify_s(tokens, context, batch):
    """Return a line with steps after 70 and 132 tokens."""
    return 1e-3 + 1e-6 * context * batch + 1e-6 * tokens + 1e-3 * (tokens > 70) + 1e-3 * (tokens > 132)


def draft_s(width, context, batch):
    return 2e-4 + 1e-7 * context * batch + 1e-6 * width


class CoarseRun:
    """A point timer after its coarse measurement, on a machine whose passes are also the clock of the deadline."""

    def __init__(
        self, make_model, coarse_s=math.inf, checkpoint=None, verify=verify_s, draft=draft_s, warm_up=NO_WARM_UP
    ):
        options = {"verify": verify, "draft": draft, "sigma": 0.03, "warm_up": warm_up}
        self.machine, target, draft = machine_and_pair(make_model, (CONTEXT,), **options)
        self.checkpoint = checkpoint or Checkpoint(None, "")
        grid = LatencyGrid(target, draft, [1, 2], SETTINGS, Recorder(self.machine, self.checkpoint))
        deadline = self.deadline(coarse_s)
        (self.timer,) = grid.time_points(lambda timer: timer.coarse(lambda _: nullcontext(), deadline), int).values()

    def deadline(self, seconds):
        return Deadline(self.machine.now_s, self.machine.now_s() + seconds)

    def samples(self, call):
        samples = self.checkpoint.samples(f"{call} {CONTEXT}x1 greedy")
        return {key: len(seconds) for key, seconds in samples.items()}


def deciding(*tokens, widths=(1,)):
    return SimpleNamespace(verify_tokens=frozenset(tokens), draft_widths=frozenset(widths))


class TestCoarse:
    def test_every_part_is_timed_and_a_resumed_run_times_nothing(self, make_model):
        run = CoarseRun(make_model)
        nodes = {tree.nodes for tree in PROBE_TREES}
        assert sorted(run.samples("verify")) == sorted({*coarse_points(MOST), *nodes})
        assert set(coarse_points(MOST)) <= set(run.samples("draft"))
        assert len(run.samples("step")) == 8  # of all probe trees, and plain
        latency = run.timer.latency()
        assert latency.verify.max_tokens == latency.draft.max_tokens == MOST
        resumed = CoarseRun(make_model, checkpoint=run.checkpoint)
        assert resumed.machine.timed == 0
        assert resumed.timer.latency().verify.tokens.tolist() == latency.verify.tokens.tolist()

    def test_plain_decoding_and_passes_of_timed_steps_are_timed_often(self, make_model):
        """Overhead is the difference of steps and their passes: with three samples of each it is mostly noise."""
        run = CoarseRun(make_model)
        verify, draft = run.samples("verify"), run.samples("draft")
        assert {verify[tree.nodes] for tree in PROBE_TREES} == {verify[1]} == {STEP_ROUNDS}
        assert {draft[width] for tree in PROBE_TREES for width in tree.draft_widths.tolist()} == {STEP_ROUNDS}
        assert verify[MOST] == PILOT_ROUNDS

    def test_expensive_passes_end_at_the_probe_trees_without_time(self, make_model):
        slow = {"verify": lambda *sizes: 1000 * verify_s(*sizes), "draft": lambda *sizes: 8000 * draft_s(*sizes)}
        run, whole = CoarseRun(make_model, coarse_s=0.0, **slow), CoarseRun(make_model, **slow)
        latency = run.timer.latency()
        assert (latency.verify.max_tokens, latency.draft.max_tokens) == (COARSE_TOKENS, COARSE_WIDTH)
        assert {len(timing.samples_s) for timing in latency.verify.timings} == {1}
        assert run.machine.now_s() < 0.7 * whole.machine.now_s()

    def test_one_disturbed_sample_of_a_cheap_pass_is_outvoted_without_time(self, make_model):
        calls: list[int] = []

        def disturbed_s(tokens, context, batch):
            calls.append(tokens)
            return verify_s(tokens, context, batch) * (20 if calls.count(tokens) == 1 else 1)

        latency = CoarseRun(make_model, coarse_s=0.0, verify=disturbed_s).timer.latency()
        assert (latency.verify.max_tokens, latency.draft.max_tokens) == (MOST, MOST)
        true_s = [verify_s(tokens, CONTEXT, 1) for tokens in latency.verify.tokens.tolist()]
        assert latency.verify.medians_s.tolist() == pytest.approx(true_s, rel=0.15)

    def test_resumed_cheap_passes_have_the_missing_rounds(self, make_model):
        whole = CoarseRun(make_model, coarse_s=0.0)
        checkpoint, kind = Checkpoint(None, ""), f"verify {CONTEXT}x1 greedy"
        for key, samples in whole.checkpoint.samples(kind).items():
            checkpoint.append(kind, key, (samples[0],))
        resumed = CoarseRun(make_model, coarse_s=0.0, checkpoint=checkpoint)
        assert resumed.samples("verify") == whole.samples("verify") == dict.fromkeys(coarse_points(MOST), PILOT_ROUNDS)


class TestRefine:
    @pytest.mark.parametrize(("part", "seconds"), [("verify", 0.2), ("draft", 0.05), ("overhead", 0.5)])
    def test_only_one_part_is_timed_until_the_deadline(self, make_model, part, seconds):
        run, calls = CoarseRun(make_model), {"verify": "verify", "draft": "draft", "overhead": "step"}
        before, start_s = {name: sum(run.samples(call).values()) for name, call in calls.items()}, run.machine.now_s()
        run.timer.refine(part, deciding(7, widths=(2, 3)), run.deadline(seconds))
        after = {name: sum(run.samples(call).values()) for name, call in calls.items()}
        assert [name for name in calls if after[name] > before[name]] == [part]
        assert 0.8 < (run.machine.now_s() - start_s) / seconds < 1.3  # at most a round more

    def test_deciding_sizes_are_timed_most_even_if_they_were_not_timed_before(self, make_model):
        run = CoarseRun(make_model)
        assert 7 not in run.samples("verify")
        run.timer.refine("verify", deciding(5, 7), run.deadline(0.3))
        samples = run.samples("verify")
        assert min(samples[5], samples[7]) >= 40
        most_pilots = STEP_ROUNDS + PILOT_ROUNDS  # neighbours again
        assert max(count for tokens, count in samples.items() if tokens not in {1, 5, 7}) <= most_pilots

    @pytest.mark.parametrize("warm", [True, False])
    def test_slow_first_calls_after_other_caches_do_not_change_the_curve(self, make_model, warm):
        """Each time the caches are allocated anew, the first three passes of a size take four times as long."""
        calls = Counter[int]()

        def cold_s(tokens, context, batch):
            calls[tokens] += 1
            return verify_s(tokens, context, batch) * (4 if tokens > 1 and calls[tokens] <= 3 else 1)

        run = CoarseRun(make_model, verify=cold_s, warm_up=WarmUp() if warm else NO_WARM_UP)
        for sizes in ((20, 30), (40, 56), (18, 36), (44, 60)) * 2:
            calls.clear()
            run.timer.refine("verify", deciding(*sizes), run.deadline(0.2))
            run.timer.close()
        table = run.timer.latency().verify
        ratios = table.medians_s / [verify_s(tokens, CONTEXT, 1) for tokens in table.tokens.tolist()]
        error = ratios.max() / ratios.min() - 1
        assert error < 0.1 if warm else error > 0.5  # without warm-up the test would see slow calls

    def test_step_of_the_curve_near_a_deciding_size_is_found(self, make_model):
        run = CoarseRun(make_model)
        for _ in range(12):
            run.timer.refine("verify", deciding(60), run.deadline(0.02))
        assert {70, 71} <= set(run.timer.latency().verify.tokens.tolist())

    def test_rounds_may_end_before_the_deadline(self, make_model):
        run = CoarseRun(make_model)
        start_s = run.machine.now_s()
        run.timer.refine("verify", deciding(8), run.deadline(1e9), rounds=9)
        assert run.samples("verify")[8] == 9
        assert run.machine.now_s() - start_s < 1


class TestBudget:
    def test_interrupted_parts_count_and_a_resumed_run_has_the_rest(self, tmp_path):
        path, now = tmp_path / "checkpoint", [100.0]
        budget = Budget(60.0, Checkpoint(path, "h"), now_s=lambda: now[0])
        assert budget.left_s == 60.0

        def interrupt():
            with budget.spending("verify"):
                now[0] += 20.0
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupt()
        assert budget.spent_s == {"verify": 20.0}
        assert budget.left_s == 40.0
        now[0] += 1e6
        resumed = Budget(60.0, Checkpoint(path, "h", resume=True), now_s=lambda: now[0])
        assert resumed.left_s == 40.0
        assert [entry.values for entry in Checkpoint(path, "h", resume=True).entries(SPENT + "verify")] == [(20.0,)]

    def test_parts_of_a_deadline_share_the_time_left(self):
        now = [0.0]
        deadline = Deadline(lambda: now[0], 12.0)
        assert [deadline.part(share).left_s for share in (0.25, 1.0)] == [3.0, 12.0]
        now[0] = 13.0
        assert deadline.over()
        assert deadline.part(0.5).left_s == 0.0
        endless = Deadline(lambda: now[0], math.inf)
        assert np.isinf(endless.part(0.1).left_s)
        assert not endless.over()


def test_parts_take_turns(make_model):
    """First three samples of each, then up to 5, 10 and 12."""
    settings = Settings(context_tokens=(CONTEXT,), max_tokens=4, rounds=12)
    machine, target, draft = machine_and_pair(make_model, (CONTEXT,))
    checkpoint, kinds = Checkpoint(None, ""), []
    append = checkpoint.append
    checkpoint.append = lambda kind, *rest: kinds.append(kind.split()[0]) or append(kind, *rest)
    measure_grid(LatencyGrid(target, draft, [1, 2], settings, Recorder(machine, checkpoint)))
    kinds = [kind for kind in kinds if kind in ("verify", "draft", "step")]
    turns = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert turns == ["verify", "draft", "step"] * 4


def test_host_overhead_is_timed_separately(make_model, monkeypatch):
    """By this clock a commit takes a quarter of a second, and drafting and passes take nothing."""
    seconds, commit = [0.0], Stepper.commit

    def slow_commit(*arguments):
        seconds[0] += 0.25
        return commit(*arguments)

    monkeypatch.setattr(Stepper, "commit", slow_commit)
    machine, target, draft = machine_and_pair(make_model, (CONTEXT,))
    machine.now_s = lambda: seconds[0]
    settings = Settings(context_tokens=(CONTEXT,), max_tokens=4, rounds=2)
    grid = LatencyGrid(target, draft, [1, 2], settings, Recorder(machine, Checkpoint(None, "")))
    (latency,) = measure_grid(grid)
    assert set(latency.host.samples_s) == {0.25}
    assert len(latency.host.samples_s) == HOST_STEPS * len([tree for tree in PROBE_TREES if tree.nodes <= 4])
