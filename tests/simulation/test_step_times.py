"""Seconds of steps and of prefill."""

from dataclasses import replace

import pytest

from tests.simulation.machines import STEP_S, TOKEN_S, engine, machine, times_of
from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InfeasibleError
from treeopt.planner import step_model
from treeopt.planner.request import PlanRequest
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.records.profile import Profile
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.trees import TokenTree, chain

TREE = TokenTree([-1, 0, 0, 1, 1, 3])


class TestSteps:
    @pytest.fixture
    def measured(self) -> Profile:
        """Return a profile with slower passes in longer contexts and larger batches, and 8 tokens faster than 7."""
        timed = [
            latency(
                seconds(
                    lambda n, at=at, size=size: 1 + at / 400 + 0.1 * size + 0.05 * n - 0.3 * (n == 8), lambda w: 0.1 * w
                ),
                context_tokens=at,
                batch_size=size,
            )
            for at in (64, 192)
            for size in (1, 4)
        ]
        return profile(timed, [acceptance([[0.7, 0.2]] * 4)])

    @pytest.mark.parametrize("tree", [chain(0), chain(3), TREE])
    @pytest.mark.parametrize(("context", "batch"), [(64, 1), (100, 1), (131, 3), (192, 4)])
    def test_steps_take_the_planned_time(self, measured: Profile, tree: TokenTree, context: int, batch: int) -> None:
        expected_s = step_model(measured, PlanRequest(context_tokens=context, batch_size=batch)).step_s(tree)
        assert times_of(measured).step_s(tree, [context] * batch) == expected_s

    @pytest.mark.parametrize(("context", "nearest"), [(3, 64), (5000, 192)])
    def test_nearest_context_is_used_outside_the_range(self, measured: Profile, context: int, nearest: int) -> None:
        times = times_of(measured)
        assert times.step_s(TREE, [context]) == times.step_s(TREE, [nearest])
        assert times.step_s(TREE, [64]) != times.step_s(TREE, [192])

    def test_contexts_measured_at_one_batch_size_hold_for_all(self) -> None:
        timed = [
            latency(seconds(lambda n, s=size: s + 0.01 * n, lambda _: 0.1), context_tokens=at, batch_size=size)
            for at, size in ((256, 1), (512, 4))
        ]
        times = times_of(profile(timed, [acceptance([[0.5]])]))
        for context in (10, 300, 900):
            assert times.step_s(chain(0), [context] * 2) == pytest.approx(2.01)
        assert times.planned_context == 256

    def test_larger_trees_than_measured_are_refused(self) -> None:
        with pytest.raises(InfeasibleError, match="nodes: times were measured for 1 to 32 tokens"):
            times_of(machine()).step_s(chain(32), [8])


class TestPrefill:
    PREFILL = PrefillLatency(
        target=LatencyTable([16, 64], [Timing([0.2]), Timing([0.8])]),
        draft=LatencyTable([16, 64], [Timing([0.02]), Timing([0.05])]),
    )

    def test_prefill_includes_the_draft_model(self) -> None:
        times = times_of(replace(machine(), prefill=self.PREFILL))
        assert times.longest_prompt == 64
        assert [times.prefill_s(tokens, 0) for tokens in (1, 16, 40, 64, 128)] == pytest.approx(
            [0.2, 0.2, 0.5, 0.8, 1.6]
        )
        assert times.prefill_s(40, 3) == pytest.approx(0.5 + 0.035)

    def test_verification_passes_replace_missing_prefill_times(self) -> None:
        times = times_of(machine())
        largest_s = STEP_S + 31 * TOKEN_S
        assert times.longest_prompt == 32
        assert times.prefill_s(20, 3) == pytest.approx(STEP_S + 19 * TOKEN_S)
        assert times.prefill_s(40, 0) == pytest.approx(40 / 32 * largest_s)

    def test_engine_prefill_uses_the_longest_fitting_chain(self) -> None:
        tables = {
            0: LatencyTable([10, 20], [Timing([0.5]), Timing([0.8])]),
            1: LatencyTable([10, 20], [Timing([0.6]), Timing([1.0])]),
        }
        times = times_of(engine(tables))
        assert times.longest_prompt == 20
        assert [times.prefill_s(tokens, 0) for tokens in (3, 10, 15, 40)] == pytest.approx([0.5, 0.5, 0.65, 1.6])
        assert [times.prefill_s(15, drafted) for drafted in (1, 7)] == pytest.approx([0.8, 0.8])

    def test_engine_prefill_may_be_unknown_or_specified(self) -> None:
        assert times_of(engine()).longest_prompt is None
        assert times_of(engine()).prefill_s(15, 0) == 0.0
        assert times_of(engine(), prompt_s=2.0).prefill_s(15, 0) == 2.0

    def test_a_schedule_has_the_draft_tokens_of_its_deepest_tree(self) -> None:
        assert ServedSetting(name="schedule", trees=(chain(2), chain(0))).draft_tokens == 2
        assert ServedSetting.fixed("plain", chain(0), 3).draft_tokens == 0


def test_the_planned_context_is_the_nearest_to_the_loads() -> None:
    timed = [latency(seconds(lambda n: 1 + 0.01 * n, lambda _: 0.1), context_tokens=at) for at in (64, 256, 768)]
    measured = profile(timed, [acceptance([[0.5]])])
    for mean, planned in ((None, 64), (150, 64), (170, 256), (5000, 768)):
        assert StepTimes(measured, measured.acceptances[0], None, mean).planned_context == planned
