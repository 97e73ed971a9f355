"""Interleaved runs on a fake machine that changes its speed: measured ratios stay right, and the pace follows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.profiler.pretended import Machine
from treeopt.planner import step_model
from treeopt.planner.benchmarks import at_pace, predict_at_pace
from treeopt.profiler import Checkpoint, Measurement, MonotonicClock, Settings
from treeopt.profiler.bench import interleave as module
from treeopt.profiler.bench import reference_passes as references_module
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.bench.interleave import WARM_UP_TOKENS, collect_rounds, decode_run, interleave, order, repeated
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import Pace
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths

SECONDS = (2.0, 1.0, 0.5)
"""Of a run of each configuration on an undisturbed machine."""


class Drifting:
    """A machine whose runs take a factor longer, by the number of the run."""

    def __init__(self, factor):
        self.factor, self.runs, self.untimed = factor, 0, []

    def configuration(self, place):
        def decode(*numbers):
            *_, new_tokens = numbers
            if new_tokens <= WARM_UP_TOKENS:
                self.untimed.append((place, new_tokens))
                return None
            self.runs += 1
            return SECONDS[place] * self.factor(self.runs - 1)

        return decode

    def speedups(self, rounds):
        configurations = [self.configuration(place) for place in range(len(SECONDS))]
        found = list(interleave(configurations, 96, rounds))
        totals = np.sum([each.runs for each in found], axis=0)
        return totals[0] / totals


def steady(_):
    return 1.0


def slower_by_half_after_a_while(run):
    return 1.0 if run < 40 else 2.0


def slowing_steadily(run):
    return 1.0 + 0.2 * run


def slow_after_a_pause(run):
    """Every first run of a round, after which the clock rises again."""
    return 2.0 if run % len(SECONDS) == 0 else 1.0


@pytest.mark.parametrize("factor", [steady, slower_by_half_after_a_while, slowing_steadily, slow_after_a_pause])
def test_ratios_stay_right_on_a_machine_that_changes(factor):
    assert Drifting(factor).speedups(repeated(8, 3)) == pytest.approx([1.0, 2.0, 4.0], rel=0.03)


@pytest.mark.parametrize(("factor", "error"), [(slowing_steadily, 0.05), (slow_after_a_pause, 0.9)])
def test_a_fixed_order_is_biased_there(factor, error, monkeypatch):
    monkeypatch.setattr(module, "order", lambda count, _: list(range(count)))
    speedups = Drifting(factor).speedups(repeated(2, 3))
    assert abs(speedups[1] / 2.0 - 1) > error


def test_one_configuration_after_the_other_is_biased_on_a_machine_that_becomes_slow():
    machine = Drifting(slower_by_half_after_a_while)
    seconds = [
        sum(machine.configuration(place)(prompt, repeat, 96) for prompt, repeat in repeated(8, 3))
        for place in range(len(SECONDS))
    ]
    assert seconds[0] / seconds[1] == pytest.approx(1.5)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_configuration_is_at_each_place_equally_often(count):
    orders = [order(count, number) for number in range(2 * count)]
    for place in range(count):
        assert sorted(each[place] for each in orders) == sorted([*range(count)] * 2)


def test_every_configuration_warms_up_alike_before_any_is_timed():
    machine = Drifting(steady)
    machine.speedups(repeated(2, 2))
    assert machine.untimed == [(0, WARM_UP_TOKENS), (1, WARM_UP_TOKENS), (2, WARM_UP_TOKENS)]
    calls = []
    list(interleave([lambda *numbers: calls.append(numbers)] * 2, 9, repeated(1, 1)))
    assert calls == [(0, 0, 3), (0, 0, 3), (0, 0, 9), (0, 0, 9)]


def test_what_is_recorded_is_not_decoded_again_and_what_is_decoded_is_recorded_at_once():
    known, calls = {(0, 5): "old", (0, 7): "old", (1, 5): "old"}, []

    def decode(place):
        return lambda *numbers: calls.append((place, *numbers)) or "new"

    rounds = interleave(
        [decode(0), decode(1)],
        60,
        [(5, 0), (7, 0)],
        recorded=lambda place, prompt: known.get((place, prompt)),
        record=lambda *run: calls.append(run),
    )
    assert [each.runs for each in rounds] == [("old", "old"), ("old", "new")]
    assert calls == [(1, 7, 0, 20), (1, 7, 0, 60), (1, 7, "new")]


@pytest.mark.parametrize(("runs", "rounds"), [(0, None), (1, None), (2, 1), (5, 2)])
def test_ctrl_c_keeps_whole_rounds(runs, rounds):
    timed = []

    def decode(*numbers):
        *_, new_tokens = numbers
        if new_tokens == 90:
            if len(timed) == runs:
                raise KeyboardInterrupt
            timed.append(numbers)

    started = interleave([decode, decode], 90, repeated(9, 1))
    if rounds is None:
        with pytest.raises(KeyboardInterrupt):
            collect_rounds(started, 9, show_progress=False)
    else:
        assert len(collect_rounds(started, 9, show_progress=False)) == rounds


def test_the_device_is_waited_for_before_and_after_a_run_and_never_within(target, draft, prompts, monkeypatch):
    waits, steps = [], []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(len(steps)))
    decoder = Decoder(target, draft, chain(2), temperature=0, on_step=steps.append)

    class Waiting(MonotonicClock):
        def time_s(self, work):
            torch.cuda.synchronize()
            work()
            torch.cuda.synchronize()
            return 1.0

    run = decode_run(decoder, prompts[0], 12, 0, Waiting())
    assert waits == [0, run.steps]
    assert run.steps == len(steps)


class Slowing(Machine):
    """A machine that takes twice as long from a number of seconds on, its target more so, and times all its work."""

    slow_after_s = np.inf
    target_factor = draft_factor = 2.0

    def run_on(self, model, name):
        model = super().run_on(model, name)
        forward = model.forward

        def slowed(*arguments, **keywords):
            before_s, slow = self.passes_s, self.passes_s >= self.slow_after_s
            outputs = forward(*arguments, **keywords)
            if slow:
                factor = self.target_factor if name == "verify" else self.draft_factor
                self.passes_s += (factor - 1) * (self.passes_s - before_s)
            return outputs

        model.forward = slowed
        return model

    def now_s(self):
        return self.passes_s


CONTEXT = 24
TREE = level_widths([6])


@pytest.fixture
def slowing(make_model):
    """Return a machine, the pair on it, prompts, and the profile of the undisturbed machine."""
    machine = Slowing((CONTEXT,))
    target, draft = (
        machine.run_on(make_model(seed=1, max_positions=256, name=name), name) for name in ("verify", "draft")
    )
    prompts = [[1 + number, 2, 3, 4, 5, 6, 7, 8] for number in range(6)]
    settings = Settings(context_tokens=(CONTEXT,), max_tokens=16, rounds=3, positions=60, depth=4, branching=3)
    profile = Measurement(target, draft, prompts, settings, clock=machine, checkpoint=Checkpoint(None, "")).profile(
        show_progress=False
    )
    return machine, target, draft, prompts, step_model(profile)


def run_bench(slowing, trees=(TREE,)):
    machine, target, draft, prompts, model = slowing
    references = reference_passes(model, target, draft, trees, prompts, clock=machine)
    machine.passes_s = 0.0
    measured = bench_trees(
        target,
        draft,
        trees,
        Workload(prompts=prompts, max_new_tokens=48, repeats=2),
        Decoding(),
        references=references,
        clock=machine,
        show_progress=False,
    )
    return model, measured


@pytest.fixture(autouse=True)
def unlimited_share(monkeypatch):
    monkeypatch.setattr(references_module, "SHARE", np.inf)


def test_an_undisturbed_machine_has_the_pace_of_its_profile(slowing):
    model, (measured,) = run_bench(slowing)
    pace = measured.pace
    assert (pace.plain, pace.verify, pace.draft) == pytest.approx((1.0, 1.0, 1.0), rel=1e-3)
    assert (pace.verify_tokens, pace.draft_width, pace.samples) == (TREE.nodes, 1, 2 * 6 * 2)
    paced = predict_at_pace(model, TREE, pace)
    assert (paced.step_s, paced.speedup) == pytest.approx((model.step_s(TREE), model.speedup(TREE)), rel=1e-3)


def test_a_machine_that_becomes_half_as_fast_keeps_its_speedup_and_the_paced_prediction_follows(slowing):
    model, (quick,) = run_bench(slowing)
    slowing[0].slow_after_s = 0.0
    _, (slow,) = run_bench(slowing)
    assert (slow.pace.plain, slow.pace.verify, slow.pace.draft) == pytest.approx((2.0, 2.0, 2.0), rel=1e-3)
    assert slow.speedup.value == pytest.approx(quick.speedup.value, rel=1e-3)
    assert slow.step_s == pytest.approx(2 * quick.step_s, rel=1e-3)
    paced = predict_at_pace(model, TREE, slow.pace)
    assert paced.step_s == pytest.approx(2 * model.step_s(TREE), rel=1e-3)
    assert paced.speedup == pytest.approx(model.speedup(TREE), rel=1e-3)


def test_halfway_through_a_run_the_measured_speedup_stays_right(slowing):
    _, (quick,) = run_bench(slowing)
    slowing[0].slow_after_s = slowing[0].passes_s / 2
    _, (slow,) = run_bench(slowing)
    assert slow.speedup.value == pytest.approx(quick.speedup.value, rel=0.05)
    assert 1.0 <= slow.pace.plain <= 2.0


def test_a_part_that_becomes_slower_changes_the_paced_prediction_as_it_changes_the_measurement(slowing):
    """What a drifting machine does to speedups: the plain prediction cannot follow, the paced one does."""
    model, (quick,) = run_bench(slowing)
    slowing[0].slow_after_s, slowing[0].target_factor = 0.0, 1.0
    _, (slow,) = run_bench(slowing)
    change = slow.speedup.value / quick.speedup.value
    assert change < 0.9
    assert predict_at_pace(model, TREE, slow.pace).speedup / model.speedup(TREE) == pytest.approx(change, rel=0.02)


def test_ratios_are_interpolated_between_the_reference_counts(slowing):
    model = slowing[-1]
    pace = Pace(plain=1.0, verify=3.0, verify_tokens=9, draft=1.5, draft_width=2, samples=5)
    scaled = at_pace(model, pace).costs
    tokens = np.array([1, 5, 9, 16])
    assert scaled.verify.at(tokens) / model.costs.verify.at(tokens) == pytest.approx([1.0, 2.0, 3.0, 3.0], rel=0.15)
    widths = np.array([1, 2, 4])
    assert scaled.draft.at(widths) / model.costs.draft.at(widths) == pytest.approx(1.5, rel=1e-3)
    assert predict_at_pace(model, chain(400), pace) is predict_at_pace(None, TREE, pace) is None


def test_reference_passes_that_do_not_fit_are_left_out(slowing):
    machine, target, draft, prompts, model = slowing
    long = replace(model, point=replace(model.point, context_tokens=10_000))
    references = reference_passes(long, target, draft, [TREE], prompts, clock=machine)
    references.time()
    references.time()
    assert references.pace is None
    assert reference_passes(None, target, draft, [TREE], prompts) is None


def test_reference_passes_have_a_share_of_the_time(slowing, monkeypatch):
    machine, target, draft, prompts, model = slowing
    monkeypatch.setattr(references_module, "SHARE", 0.0)
    references = reference_passes(model, target, draft, [TREE], prompts, clock=machine)
    for _ in range(5):
        references.time()
    assert references.pace.samples == 1


def test_without_a_draft_model_its_level_is_left_out(slowing):
    machine, target, _, prompts, model = slowing
    references = reference_passes(model, target, None, [chain(3)], prompts, clock=machine)
    references.time()
    assert references.pace.draft is references.pace.draft_width is None
    assert references.pace.plain == pytest.approx(1.0, rel=1e-3)
