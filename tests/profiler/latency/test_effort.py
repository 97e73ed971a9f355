"""How much is timed: fixed rounds in blocks, and under a time budget first a little of everything, then what decides."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tests.profiler.pretended import NO_WARM_UP, machine_and_pair
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.budget import SPENT, Budget, Deadline
from treeopt.profiler.latency.curve import PILOT_ROUNDS
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.profiler.latency.point import COARSE_TOKENS, COARSE_WIDTH
from treeopt.profiler.latency.rounds import coarse_points
from treeopt.profiler.latency.steps import HOST_STEPS
from treeopt.runtime.decoding.step import Stepper

CONTEXT, MOST = 30, 160
SETTINGS = Settings(context_tokens=(CONTEXT,), max_tokens=MOST, time_budget_s=60.0)


def two_steps_s(tokens, context, batch):
    return 1e-3 + 1e-6 * context * batch + 1e-6 * tokens + 1e-3 * (tokens > 70) + 1e-3 * (tokens > 132)


def straight_s(width, context, batch):
    return 2e-4 + 1e-7 * context * batch + 1e-6 * width


class Pretended:
    """A machine whose passes are the clock of the budget too, and its times after a first round."""

    def __init__(self, make_model, coarse_s=math.inf, checkpoint=None, verify=two_steps_s, draft=straight_s):
        machine = {"verify": verify, "draft": draft, "sigma": 0.03, "warm_up": NO_WARM_UP}
        self.machine, target, draft = machine_and_pair(make_model, (CONTEXT,), **machine)
        self.checkpoint = checkpoint or Checkpoint(None, "")
        grid = LatencyGrid(target, draft, [1, 2], SETTINGS, clock=self.machine, checkpoint=self.checkpoint)
        time = self.slice(coarse_s)
        (self.times,) = grid.time_points(lambda each: each.coarse(lambda _: nullcontext(), time), int).values()

    def now_s(self):
        return self.machine.passes_s

    def slice(self, seconds):
        return Deadline(self.now_s, self.now_s() + seconds)

    def samples(self, what):
        return {key: len(each) for key, each in self.checkpoint.samples(f"{what} {CONTEXT}x1 greedy").items()}


def deciding(*tokens, widths=(1,)):
    return SimpleNamespace(verify_tokens=frozenset(tokens), draft_widths=frozenset(widths))


class TestCoarse:
    def test_a_first_round_visits_every_part(self, make_model):
        pretended = Pretended(make_model)
        assert sorted(pretended.samples("verify")) == sorted(pretended.samples("draft")) == coarse_points(MOST)
        assert len(pretended.samples("step")) == 8  # of all probe trees, and plain
        latency = pretended.times.latency()
        assert latency.verify.max_tokens == latency.draft.max_tokens == MOST

    def test_without_time_no_expensive_pass_is_larger_than_the_probe_trees(self, make_model):
        slow = {"verify": lambda *sizes: 1000 * two_steps_s(*sizes), "draft": lambda *sizes: 8000 * straight_s(*sizes)}
        pretended = Pretended(make_model, coarse_s=0.0, **slow)
        latency = pretended.times.latency()
        assert (latency.verify.max_tokens, latency.draft.max_tokens) == (COARSE_TOKENS, COARSE_WIDTH)
        assert {len(timing.samples_s) for timing in latency.verify.timings} == {1}
        whole = Pretended(make_model, **slow)
        assert pretended.now_s() < 0.7 * whole.now_s()

    def test_without_time_cheap_passes_are_timed_all_the_same(self, make_model):
        latency = Pretended(make_model, coarse_s=0.0).times.latency()
        assert (latency.verify.max_tokens, latency.draft.max_tokens) == (MOST, MOST)

    def test_a_disturbed_first_round_of_quick_passes_is_outvoted(self, make_model):
        calls: list[int] = []

        def disturbed_s(tokens, context, batch):
            calls.append(tokens)
            return two_steps_s(tokens, context, batch) * (20 if calls.count(tokens) == 1 else 1)

        latency = Pretended(make_model, coarse_s=0.0, verify=disturbed_s).times.latency()
        true_s = [two_steps_s(tokens, CONTEXT, 1) for tokens in latency.verify.tokens.tolist()]
        assert latency.verify.medians_s.tolist() == pytest.approx(true_s, rel=0.15)

    def test_resumed_quick_passes_get_the_missing_rounds(self, make_model):
        whole = Pretended(make_model, coarse_s=0.0)
        checkpoint, kind = Checkpoint(None, ""), f"verify {CONTEXT}x1 greedy"
        for key, samples in whole.checkpoint.samples(kind).items():
            checkpoint.append(kind, key, (samples[0],))
        resumed = Pretended(make_model, coarse_s=0.0, checkpoint=checkpoint)
        assert resumed.samples("verify") == whole.samples("verify") == dict.fromkeys(coarse_points(MOST), PILOT_ROUNDS)

    def test_what_the_checkpoint_holds_is_not_timed_again(self, make_model):
        first = Pretended(make_model)
        again = Pretended(make_model, checkpoint=first.checkpoint)
        assert again.machine.timed == 0
        assert again.times.latency().verify.tokens.tolist() == first.times.latency().verify.tokens.tolist()


class TestRefine:
    @pytest.mark.parametrize("part", ["verify", "draft", "overhead"])
    def test_one_part_is_timed_for_the_slice(self, make_model, part):
        pretended = Pretended(make_model)
        names = {"verify": "verify", "draft": "draft", "overhead": "step"}
        before = {name: sum(pretended.samples(kind).values()) for name, kind in names.items()}
        start_s = pretended.now_s()
        pretended.times.refine(part, deciding(7, widths=(2, 3)), pretended.slice(0.5), rounds=10**6)
        after = {name: sum(pretended.samples(kind).values()) for name, kind in names.items()}
        assert [name for name in names if after[name] > before[name]] == [part]
        assert 0.4 < pretended.now_s() - start_s < 0.65  # no more than a round beyond

    def test_sizes_that_decide_are_timed_most_and_those_not_timed_before_too(self, make_model):
        pretended = Pretended(make_model)
        few = pretended.samples("verify")
        assert 7 not in few
        pretended.times.refine("verify", deciding(5, 7), pretended.slice(0.3))
        many = pretended.samples("verify")
        assert min(many[5], many[7]) >= 40
        assert max(count for tokens, count in many.items() if tokens not in {5, 7}) <= 3

    def test_a_step_of_the_curve_near_what_decides_is_found(self, make_model):
        pretended = Pretended(make_model)
        for _ in range(12):
            pretended.times.refine("verify", deciding(60), pretended.slice(0.02))
        assert {70, 71} <= set(pretended.times.latency().verify.tokens.tolist())

    def test_rounds_may_end_it_before_the_time_does(self, make_model):
        pretended = Pretended(make_model)
        start_s = pretended.now_s()
        pretended.times.refine("verify", deciding(8), pretended.slice(1e9), rounds=9)
        assert pretended.samples("verify")[8] == 9
        assert pretended.now_s() - start_s < 1


class TestBudget:
    def test_seconds_are_counted_by_part_also_of_one_that_is_interrupted(self):
        now = [100.0]
        checkpoint = Checkpoint(None, "")
        budget = Budget(60.0, checkpoint, now_s=lambda: now[0])
        assert budget.left_s == 60.0

        def interrupted():
            with budget.spending("verify"):
                now[0] += 5.0
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert budget.spent_s == {"verify": 5.0}
        assert budget.left_s == 55.0

    def test_a_resumed_run_has_what_is_left(self, tmp_path):
        path, now = tmp_path / "checkpoint", [0.0]
        budget = Budget(60.0, Checkpoint(path, "h"), now_s=lambda: now[0])
        with budget.spending("draft"):
            now[0] += 20.0
        now[0] += 1e6  # the break
        resumed = Budget(60.0, Checkpoint(path, "h", resume=True), now_s=lambda: now[0])
        assert resumed.left_s == 40.0
        assert [entry.values for entry in Checkpoint(path, "h", resume=True).entries(SPENT + "draft")] == [(20.0,)]

    def test_slices_share_what_is_left(self):
        now = [0.0]
        time = Deadline(lambda: now[0], 12.0)
        assert [time.part(share).left_s for share in (0.25, 1.0)] == [3.0, 12.0]
        now[0] = 13.0
        assert time.over()
        assert time.part(0.5).left_s == 0.0
        endless = Deadline(lambda: now[0], math.inf)
        assert np.isinf(endless.part(0.1).left_s)
        assert not endless.over()


def test_fixed_rounds_take_turns_in_blocks(make_model):
    settings = Settings(context_tokens=(CONTEXT,), max_tokens=4, rounds=12)
    machine, target, draft = machine_and_pair(make_model, (CONTEXT,), warm_up=NO_WARM_UP)
    checkpoint, kinds = Checkpoint(None, ""), []
    keep = checkpoint.append
    checkpoint.append = lambda kind, *rest: kinds.append(kind.split()[0]) or keep(kind, *rest)
    LatencyGrid(target, draft, [1, 2], settings, clock=machine, checkpoint=checkpoint).measure(int)
    kinds = [kind for kind in kinds if kind != "host"]
    turns = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert turns == ["verify", "draft", *["verify", "draft", "step"] * 3]


def test_the_hosts_work_is_timed_apart(make_model, monkeypatch):
    """Committing takes a quarter of a second by this clock, and all drafting and every pass no time at all."""
    seconds = 0.0
    commit = Stepper.commit

    def slow_commit(*arguments):
        nonlocal seconds
        seconds += 0.25
        return commit(*arguments)

    monkeypatch.setattr(Stepper, "commit", slow_commit)
    machine, target, draft = machine_and_pair(make_model, (CONTEXT,), warm_up=NO_WARM_UP)
    machine.now_s = lambda: seconds
    settings = Settings(context_tokens=(CONTEXT,), max_tokens=4, rounds=2)
    (latency,) = LatencyGrid(target, draft, [1, 2], settings, clock=machine, checkpoint=Checkpoint(None, "")).measure(
        int
    )
    assert set(latency.host.samples_s) == {0.25}
    assert len(latency.host.samples_s) == HOST_STEPS * len([tree for tree in PROBE_TREES if tree.nodes <= 4])
