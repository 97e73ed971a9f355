"""Interleaved runs on a fake machine that changes its speed: ratios stay right, and the pace follows."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import Machine, measure_profile
from treeopt.planner import step_model
from treeopt.planner.benchmarks import at_pace, predict_at_pace
from treeopt.profiler import MonotonicClock, Settings
from treeopt.profiler.bench import interleave as interleave_module
from treeopt.profiler.bench import reference_passes as references_module
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.bench.interleave import WARM_UP_TOKENS, collect_rounds, decode_run, interleave, order
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import Pace
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths

SECONDS = (2.0, 1.0, 0.5)
"""Of a run of each configuration on an undisturbed machine."""


def measure_speedups(factor, rounds):
    """Return the speedups of interleaved configurations, whose n-th run takes `factor(n)` times as long."""
    runs = [0]

    def configuration(seconds):
        def decode(_, new_tokens):
            if new_tokens <= WARM_UP_TOKENS:
                return None
            runs[0] += 1
            return seconds * factor(runs[0] - 1)

        return decode

    totals = np.sum([*interleave([configuration(seconds) for seconds in SECONDS], 96, range(rounds))], axis=0)
    return totals[0] / totals


def slower_later(run):
    return 1.0 if run < 40 else 2.0


def slowing_steadily(run):
    return 1.0 + 0.2 * run


def slow_after_a_pause(run):
    """Return 2 for the first run of every round, before the clock rises again."""
    return 2.0 if run % len(SECONDS) == 0 else 1.0


class TestInterleave:
    @pytest.mark.parametrize("factor", [lambda _: 1.0, slower_later, slowing_steadily, slow_after_a_pause])
    def test_ratios_are_right_on_a_machine_that_changes(self, factor):
        assert measure_speedups(factor, 24) == pytest.approx([1.0, 2.0, 4.0], rel=0.03)

    @pytest.mark.parametrize(("factor", "error"), [(slowing_steadily, 0.05), (slow_after_a_pause, 0.9)])
    def test_a_fixed_order_is_biased(self, factor, error, monkeypatch):
        """Negative control."""
        monkeypatch.setattr(interleave_module, "order", lambda count, _: list(range(count)))
        assert abs(measure_speedups(factor, 6)[1] / 2.0 - 1) > error

    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_each_configuration_is_at_each_place_equally_often(self, count):
        orders = [order(count, number) for number in range(2 * count)]
        for place in range(count):
            assert sorted(places[place] for places in orders) == sorted([*range(count)] * 2)

    @pytest.mark.parametrize(("new_tokens", "warm_up"), [(9, 3), (200, WARM_UP_TOKENS)])
    def test_every_configuration_warms_up_before_any_is_timed(self, new_tokens, warm_up):
        calls = []
        list(interleave([lambda *numbers: calls.append(numbers)] * 2, new_tokens, [5]))
        assert calls == [(5, warm_up)] * 2 + [(5, new_tokens)] * 2

    def test_recorded_runs_are_not_decoded_again_and_new_ones_are_recorded_at_once(self):
        runs, calls = {(0, 5): "old", (0, 7): "old", (1, 5): "old"}, []

        def configuration(index):
            return lambda *numbers: calls.append((index, *numbers)) or "new"

        rounds = interleave(
            [configuration(0), configuration(1)],
            60,
            [5, 7],
            recorded=lambda *run: runs.get(run),
            record=lambda *run: calls.append(run),
        )
        assert list(rounds) == [("old", "old"), ("old", "new")]
        assert calls == [(1, 7, 20), (1, 7, 60), (1, 7, "new")]

    @pytest.mark.parametrize(("runs", "rounds"), [(1, None), (2, 1), (5, 2)])
    def test_ctrl_c_keeps_whole_rounds(self, runs, rounds):
        timed = []

        def decode(number, new_tokens):
            if new_tokens == 90:
                if len(timed) == runs:
                    raise KeyboardInterrupt
                timed.append(number)

        configurations = [decode, decode]
        if rounds is None:
            with pytest.raises(KeyboardInterrupt):
                collect_rounds(configurations, 90, 9)
        else:
            assert len(collect_rounds(configurations, 90, 9)) == rounds

    def test_whole_runs_are_timed(self, target, draft, prompts):
        """The clock, which may wait for the device, is read before and after a run and never within."""
        readings, steps = [], []
        decoder = Decoder(target, draft, chain(2), temperature=0, on_step=steps.append)
        run = decode_run(decoder, prompts[0], 12, 0, MonotonicClock(lambda: readings.append(len(steps)) or 1.0))
        assert readings == [0, run.steps]
        assert run.steps == len(steps)


class SlowingMachine(Machine):
    """A machine whose passes take a factor longer from a number of seconds on."""

    slow_after_s = np.inf
    target_factor = draft_factor = 2.0

    def run_on(self, model, name):
        model = super().run_on(model, name)
        forward = model.forward

        def slow_forward(*arguments, **options):
            before_s = self.passes_s
            outputs = forward(*arguments, **options)
            if before_s >= self.slow_after_s:
                factor = self.target_factor if name == "verify" else self.draft_factor
                self.passes_s += (factor - 1) * (self.passes_s - before_s)
            return outputs

        model.forward = slow_forward
        return model


CONTEXT = 24
TREE = level_widths([6])
PROMPTS = [[1 + number, 2, 3, 4, 5, 6, 7, 8] for number in range(6)]


class TestPace:
    @pytest.fixture(autouse=True)
    def unlimited_share(self, monkeypatch):
        monkeypatch.setattr(references_module, "SHARE", np.inf)

    @pytest.fixture
    def slowing(self, make_model):
        """Return a machine, the pair on it, and the step model of the undisturbed machine."""
        machine = SlowingMachine((CONTEXT,))
        pair = [machine.run_on(make_model(seed=1, max_positions=256, name=name), name) for name in ("verify", "draft")]
        settings = Settings(context_tokens=(CONTEXT,), max_tokens=16, rounds=3, positions=60, depth=4, branching=3)
        return machine, *pair, step_model(measure_profile(*pair, PROMPTS, settings, clock=machine))

    def bench(self, slowing, slow_after_s=np.inf, **factors):
        """Return the measurement of one tree on a machine that becomes slow."""
        machine, target, draft, model = slowing
        machine.slow_after_s = slow_after_s
        for name, factor in factors.items():
            setattr(machine, name, factor)
        references = reference_passes(model, target, draft, [TREE], PROMPTS, clock=machine)
        machine.passes_s = 0.0
        workload = Workload(prompts=PROMPTS, max_new_tokens=48, repeats=2)
        options = {"references": references, "clock": machine}
        (measured,) = bench_trees(target, draft, [TREE], workload, Decoding(), **options)
        return measured

    def test_pace_of_an_undisturbed_machine_is_1_and_of_a_slow_one_2(self, slowing):
        model = slowing[-1]
        normal, slow = self.bench(slowing), self.bench(slowing, slow_after_s=0.0)
        assert (normal.pace.verify_tokens, normal.pace.draft_width, normal.pace.samples) == (TREE.nodes, 1, 2 * 6 * 2)
        for measured, factor in ((normal, 1.0), (slow, 2.0)):
            pace = measured.pace
            assert (pace.plain, pace.verify, pace.draft) == pytest.approx((factor,) * 3, rel=1e-3)
            predicted = predict_at_pace(model, TREE, pace)
            assert predicted.step_s == pytest.approx(factor * model.step_s(TREE), rel=1e-3)
            assert predicted.speedup == pytest.approx(model.speedup(TREE), rel=1e-3)
        assert slow.speedup.value == pytest.approx(normal.speedup.value, rel=1e-3)
        assert slow.step_s == pytest.approx(2 * normal.step_s, rel=1e-3)

    def test_speedup_is_right_if_the_machine_becomes_slow_within_the_run(self, slowing):
        normal = self.bench(slowing)
        slow = self.bench(slowing, slow_after_s=slowing[0].passes_s / 2)
        assert slow.speedup.value == pytest.approx(normal.speedup.value, rel=0.05)
        assert 1.0 <= slow.pace.plain <= 2.0

    def test_prediction_follows_a_model_that_becomes_slower(self, slowing):
        model = slowing[-1]
        normal, slow = self.bench(slowing), self.bench(slowing, slow_after_s=0.0, target_factor=1.0)
        change = slow.speedup.value / normal.speedup.value
        assert change < 0.9
        predicted = predict_at_pace(model, TREE, slow.pace)
        assert predicted.speedup / model.speedup(TREE) == pytest.approx(change, rel=0.02)

    def test_pace_is_interpolated_between_the_reference_counts(self, slowing):
        model = slowing[-1]
        pace = Pace(plain=1.0, verify=3.0, verify_tokens=9, draft=1.5, draft_width=2, samples=5)
        costs, tokens, widths = at_pace(model, pace).costs, np.array([1, 5, 9, 16]), np.array([1, 2, 4])
        assert costs.verify.at(tokens) / model.costs.verify.at(tokens) == pytest.approx([1.0, 2.0, 3.0, 3.0], rel=0.15)
        assert costs.draft.at(widths) / model.costs.draft.at(widths) == pytest.approx(1.5, rel=1e-3)
        assert predict_at_pace(model, chain(400), pace) is predict_at_pace(None, TREE, pace) is None

    def test_reference_passes_are_limited_by_memory_and_by_their_share(self, slowing, monkeypatch):
        machine, target, draft, model = slowing
        distant = replace(model, point=replace(model.point, context_tokens=10_000))
        references = reference_passes(distant, target, draft, [TREE], PROMPTS, clock=machine)
        references.time()
        references.time()
        assert references.pace is None
        assert reference_passes(None, target, draft, [TREE], PROMPTS) is None
        monkeypatch.setattr(references_module, "SHARE", 0.0)
        references = reference_passes(model, target, None, [TREE], PROMPTS, clock=machine)
        for _ in range(5):
            references.time()
        assert references.pace.samples == 1
        assert references.pace.draft is references.pace.draft_width is None  # without a draft model
        assert references.pace.plain == pytest.approx(1.0, rel=1e-3)
