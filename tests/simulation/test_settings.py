"""Loads, and the settings that are compared."""

from dataclasses import replace

import numpy as np
import pytest

from tests.scripts import ROOT
from tests.simulation.machines import engine, machine, times_of
from treeopt.errors import InvalidValueError
from treeopt.planner.request import PlanRequest
from treeopt.planner.subsets import for_new_tokens
from treeopt.records.latency import LatencyTable
from treeopt.records.profile import Profile
from treeopt.simulation.arrivals import Load, arrivals
from treeopt.simulation.settings import served_settings
from treeopt.simulation.simulate import Deployment


class TestLoads:
    def test_arrivals_are_poisson_and_reproducible(self) -> None:
        load = Load(rate_per_s=7.0, prompt_tokens=(3, 9), new_tokens=(5, 90), duration_s=1000)
        requests = arrivals(load)
        assert len(requests) == pytest.approx(7000, rel=0.05)
        assert {request.prompt_tokens for request in requests} == set(range(3, 10))
        assert requests == arrivals(load)
        assert requests != arrivals(replace(load, seed=1))
        gaps = np.diff([request.arrival_s for request in requests])
        assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)  # exponential
        fast = arrivals(replace(load, rate_per_s=14.0, duration_s=500))
        assert [request[1:] for request in fast] == [request[1:] for request in requests]
        assert [2 * request.arrival_s for request in fast] == pytest.approx([request.arrival_s for request in requests])

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
        with pytest.raises(InvalidValueError, match=rf"^{name}: expected") as error:
            Load(**{"rate_per_s": 1.0, "prompt_tokens": (8, 8), "new_tokens": (8, 8)} | wrong)
        assert error.value.field == name

    def test_a_million_requests_within_a_millisecond_are_refused(self) -> None:
        with pytest.raises(InvalidValueError, match=r"at most 100000 requests in all\. Got 1e\+09 .* a lower rate"):
            Load(rate_per_s=999_999_999.0, prompt_tokens=(8, 8), new_tokens=(8, 8), duration_s=0.001)


class TestSettings:
    def test_the_schedule_drafts_less_in_larger_batches(self) -> None:
        plain, shortest, *_, schedule = served_settings(
            times_of(machine(batches=(1, 8), dearer=0.2)), PlanRequest(max_nodes=8)
        )
        assert (plain.name, shortest.name, schedule.name) == ("plain", "chain of 1 draft token", "schedule")
        nodes = [tree.nodes for tree in schedule.trees]
        assert len(nodes) == 8
        assert nodes == sorted(nodes, reverse=True)
        assert nodes[0] > nodes[-1]

    def test_max_nodes_limits_every_setting(self) -> None:
        settings = served_settings(times_of(machine(batches=(1, 8))), PlanRequest(max_nodes=3))
        assert max(tree.nodes for setting in settings for tree in setting.trees) == 3

    def test_chains_are_no_longer_than_the_timed_blocks(self) -> None:
        profile = machine(batches=(1, 8))
        timed = profile.latencies[0].draft
        assert timed is not None
        blocks = LatencyTable(timed.tokens[:3], timed.timings[:3])
        latencies = [replace(latency, draft=blocks, per_block=True, steps=()) for latency in profile.latencies]
        times = times_of(replace(profile, latencies=tuple(latencies)))
        settings = served_settings(times, PlanRequest())
        assert max(tree.max_depth for setting in settings for tree in setting.trees) == timed.tokens[2] == 3
        load = Load(rate_per_s=0.1, prompt_tokens=(8, 8), new_tokens=(8, 8), duration_s=20)
        for setting in settings:
            assert Deployment(times=times, batch_size=8).simulate(setting, load)

    @pytest.mark.parametrize("made", [machine(batches=(1, 2)), engine()], ids=["decoder", "engine"])
    def test_trees_are_no_larger_than_the_passes_of_any_batch_size(self, made: Profile) -> None:
        """Every setting decodes at every batch size."""
        if made.engine is None:
            single, pair = made.latencies
            verify = LatencyTable(pair.verify.tokens[:2], pair.verify.timings[:2])
            made = replace(made, latencies=(single, replace(pair, verify=verify)))
        else:
            first, second = made.chain_latencies
            made = replace(made, chain_latencies=(first, replace(second, chains=second.chains[:1])))
        times = times_of(made, prompt_s=0.0)
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(8, 8), duration_s=4)
        for setting in served_settings(times, PlanRequest()):
            assert Deployment(times=times, batch_size=2).simulate(setting, load)

    def test_the_schedule_is_about_as_fast_as_the_best_fixed_setting(self) -> None:
        times = times_of(machine(batches=(1, 2, 3, 4, 6, 8), dearer=0.2), prompt_s=0.01)
        deployment = Deployment(times=times, batch_size=8)
        settings = served_settings(times, PlanRequest(max_nodes=8))
        for rate in (0.02, 0.2):
            load = Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(16, 16), duration_s=60 / rate)
            *fixed, schedule = (deployment.simulate(setting, load).token_s for setting in settings)
            assert schedule <= 1.1 * min(fixed)
            assert max(fixed) > 1.3 * min(fixed), "the settings are too similar"

    @pytest.mark.slow
    def test_the_schedule_of_short_sequences_is_as_fast_as_the_best_fixed_setting(self) -> None:
        """Acceptance of the bundled pair rises along its sequences, so that the best setting depends on their length."""
        times = times_of(Profile.load(ROOT / "docs" / "profiles" / "bundled-2-cores-surface.yaml"))
        *fixed, schedule = served_settings(times, PlanRequest(), profile=for_new_tokens(times.profile, 64))
        of_long = served_settings(times, PlanRequest())[-1]
        chains = [setting for setting in fixed if 3 <= setting.draft_tokens <= 7]
        load = Load(rate_per_s=32, prompt_tokens=(32, 128), new_tokens=(64, 64), duration_s=25)
        deployment = Deployment(times=times, batch_size=times.max_batch_size)
        *others_s, short_s, long_s = (
            deployment.simulate(setting, load).latency.median_s for setting in [*chains, schedule, of_long]
        )
        assert short_s <= 1.02 * min(others_s)
        assert max(others_s) > 1.04 * min(others_s), "the settings are too similar"
        assert long_s > 1.04 * min(others_s)
