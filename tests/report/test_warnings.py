"""Warnings about disturbed, drifting and scattered times, and about heads that read other states than in training."""

from dataclasses import replace

import pytest

from tests.cli.invented import invented
from tests.planner.test_drafters import heads, lookup, lookup_rows
from tests.records.test_timing_quality import STEADY, latency, table
from treeopt.planner import PlanRequest, requested_plan
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.step_latency import Interference
from treeopt.report.plan_warnings import head_warnings, profile_plan_warnings, times_warnings


def warnings(*latencies):
    return list(map(str, times_warnings(latencies)))


@pytest.mark.parametrize(
    "times",
    [
        latency(STEADY),
        latency([1.0, 5.0, 9.0]),  # too few samples
        latency(STEADY, verify=table(STEADY, [1.0] * 4 + [9.0] * 4, STEADY)),  # one outlier
        latency(STEADY, interference=Interference(calls=0.5, samples=0.0, processors=1.0)),  # left out
    ],
)
def test_steady_times_give_no_warning(times):
    assert warnings(times) == []


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([1.0] * 4 + [1.1] * 4, "the machine became 10 % slower while it was timed"),
        ([1.0] * 4 + [0.8] * 4, "the machine became 20 % faster while it was timed"),
        ([1.0, 1.5] * 4, "single calls vary by 40 %"),
    ],
)
def test_each_warning_names_the_operating_point_and_a_remedy(samples, reason):
    (warning,) = warnings(latency(STEADY, context_tokens=64), latency(samples))
    assert warning.startswith("256 tokens of context, batch 2: ")
    assert reason in warning
    remedy = warning.split(". ", 1)[1]
    assert "profile again" in remedy or "use more --rounds" in remedy
    assert remedy.endswith(".")


@pytest.mark.parametrize(
    "interference",
    [None, Interference(calls=0.0, samples=0.0), Interference(calls=0.5, samples=0.0, processors=1.0)],
)
def test_drift_and_spread_are_separate_warnings_of_undisturbed_samples(interference):
    drift, spread = warnings(latency([1.0, 1.5] * 3 + [2.0, 3.0] * 3, interference=interference))
    assert "the machine became" in drift
    assert "single calls vary" in spread


def test_draft_times_are_checked():
    slower = table(*[[1.0] * 4 + [1.2] * 4] * 4)
    assert len(warnings(latency(STEADY, draft=slower))) == 1


def test_disturbed_samples_give_the_disturbance_only():
    disturbed = Interference(calls=0.4, samples=0.25, processors=0.95)
    (warning,) = warnings(latency([1.0] * 4 + [59.0] * 4, interference=disturbed))
    assert warning == (
        "256 tokens of context, batch 2: other programs used 95 % of the processors during 40 % of the timed calls. "
        "25 % of the samples were taken then and are too long. "
        "Close them, or wait for quiet with --wait 10m, and profile again."
    )


def head_of(first, positions=400):
    """Return a head whose first draft token is accepted with a probability, at some positions."""
    drafter = heads(invented(), AcceptanceTable([[first, 0.0], [0.5, 0.1]]), name="dflash")
    (trees,) = drafter.trees
    return replace(drafter, trees=(replace(trees, acceptance=replace(trees.acceptance, positions=positions)),))


@pytest.mark.parametrize(("first", "shown"), [(0.02, "2 %"), (1.0, "100 %"), (0.0, "0 %")])
def test_a_first_token_that_is_hardly_or_always_accepted_is_warned_of(first, shown):
    profile = replace(invented(), drafters=(head_of(first),))
    (warning,) = head_warnings(profile.drafters)
    assert str(warning).startswith(f"dflash: the first draft token is accepted at {shown} of 400 positions")
    assert warning in profile_plan_warnings(
        ProfilePlan(profile=profile, plan=requested_plan(profile, PlanRequest(max_nodes=4)))
    )


@pytest.mark.parametrize(("first", "positions"), [(0.05, 400), (0.99, 400), (1.0, 20), (0.0, 20)])
def test_other_heads_and_few_positions_give_no_warning(first, positions):
    profile = invented()
    assert head_warnings([head_of(first, positions), lookup(profile, lookup_rows())]) == []
