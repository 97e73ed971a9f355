"""Loads, and the settings that are compared."""

from dataclasses import replace

import numpy as np
import pytest

from tests.scripts import ROOT
from tests.simulation.machines import machine, times_of
from treeopt.errors import InvalidValueError
from treeopt.planner.request import PlanRequest
from treeopt.records.profile import Profile
from treeopt.simulation.arrivals import Load, arrivals
from treeopt.simulation.settings import served_settings
from treeopt.simulation.simulate import Deployment


class TestLoads:
    def test_requests_arrive_at_the_rate_and_are_the_same_for_a_seed(self) -> None:
        load = Load(rate_per_s=7.0, prompt_tokens=(3, 9), new_tokens=(5, 5), duration_s=1000)
        requests = arrivals(load)

        assert len(requests) == pytest.approx(7000, rel=0.05)
        assert {each.prompt_tokens for each in requests} == set(range(3, 10))
        assert requests == arrivals(load)
        assert requests != arrivals(replace(load, seed=1))
        gaps = np.diff([each.arrival_s for each in requests])
        assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)  # as of exponential ones

    def test_a_rate_has_the_same_requests_in_another_time(self) -> None:
        load = Load(rate_per_s=1.0, prompt_tokens=(3, 9), new_tokens=(5, 90), duration_s=100)
        slow, fast = arrivals(load), arrivals(replace(load, rate_per_s=2.0, duration_s=50))
        assert [each[1:] for each in slow] == [each[1:] for each in fast]
        assert [each.arrival_s for each in slow] == pytest.approx([2 * each.arrival_s for each in fast])

    def test_at_least_one_arrives(self) -> None:
        assert len(arrivals(Load(rate_per_s=1e-6, prompt_tokens=(8, 8), new_tokens=(8, 8), duration_s=1))) == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rate_per_s": 0.0},
            {"rate_per_s": float("nan")},
            {"duration_s": -1.0},
            {"new_tokens": (0, 4)},
            {"prompt_tokens": (5, 4)},
            {"rate_per_s": 1e9},
        ],
    )
    def test_impossible_loads_are_refused(self, wrong: dict[str, object]) -> None:
        (name,) = wrong
        with pytest.raises(InvalidValueError, match=rf"^{name}: expected"):
            Load(**{"rate_per_s": 1.0, "prompt_tokens": (8, 8), "new_tokens": (8, 8)} | wrong)


class TestSettings:
    def test_the_schedule_drafts_less_in_larger_batches(self) -> None:
        settings = served_settings(times_of(machine(batches=(1, 8), dearer=0.2)), PlanRequest(max_nodes=8))
        schedule = settings[-1]

        assert [each.name for each in settings[:2]] == ["plain", "chain of 1 draft token"]
        assert schedule.name == "schedule"
        nodes = [tree.nodes for tree in schedule.trees]
        assert len(nodes) == 8
        assert nodes == sorted(nodes, reverse=True)
        assert nodes[0] > nodes[-1]

    def test_budget_limits_every_setting(self) -> None:
        settings = served_settings(times_of(machine(batches=(1, 8))), PlanRequest(max_nodes=3))

        assert max(tree.nodes for each in settings for tree in each.trees) == 3

    def test_schedule_is_about_as_fast_as_the_best_fixed_setting(self) -> None:
        times = times_of(machine(batches=(1, 2, 3, 4, 6, 8), dearer=0.2), prompt_s=0.01)
        deployment = Deployment(times=times, batch_size=8)
        settings = served_settings(times, PlanRequest(max_nodes=8))
        for rate in (0.02, 0.2):
            load = Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(16, 16), duration_s=60 / rate)
            *fixed, schedule = (deployment.simulate(each, load).token_s for each in settings)

            assert schedule <= 1.1 * min(fixed)
            assert max(fixed) > 1.3 * min(fixed)  # otherwise any schedule would do


class TestScheduleOfShortSequences:
    """Acceptance of the bundled pair rises along its sequences: what is best for long ones is not for short ones."""

    @pytest.mark.slow
    @pytest.mark.parametrize("rate", [32])
    def test_schedule_of_batches_is_as_fast_as_the_best_fixed_setting(self, rate: float) -> None:
        times = times_of(Profile.load(ROOT / "docs" / "profiles" / "bundled-2-cores-surface.yaml"))
        *fixed, schedule = served_settings(times, PlanRequest(), new_tokens=64)
        for_long = served_settings(times, PlanRequest())[-1]
        chains = [each for each in fixed if 3 <= each.draft_tokens <= 7]
        load = Load(rate_per_s=rate, prompt_tokens=(32, 128), new_tokens=(64, 64), duration_s=1500 / rate)
        deployment = Deployment(times=times, batch_size=times.max_batch_size)
        *others, short, long = (
            deployment.simulate(each, load).latency.median_s for each in [*chains, schedule, for_long]
        )

        assert short <= 1.02 * min(others)
        assert max(others) > 1.04 * min(others)  # otherwise any schedule would do
        if rate == 32:
            assert long > 1.04 * min(others)  # as would this
