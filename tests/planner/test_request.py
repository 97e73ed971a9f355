"""What is asked of the planner: the record and the keywords of the façade ask for the same."""

import pytest

from tests.cli.invented import FOUR_CONDITIONS, invented
from tests.scripts import ROOT
from treeopt.errors import InvalidValueError
from treeopt.planner import PlanRequest, plan, requested_plan, schedule
from treeopt.planner.scheduling import count_scheduled_points
from treeopt.records.profile import Profile

PROFILE = invented(conditions=FOUR_CONDITIONS)
ASKED = {"context_tokens": PROFILE.latencies[-1].context_tokens, "batch_size": PROFILE.latencies[-1].batch_size}


def test_plan_of_a_request_is_that_of_keywords():
    limits = {"max_depth": 3, "level_widths": 2, "objective": "tokens", "raw": True}
    assert requested_plan(PROFILE, PlanRequest(max_nodes=9, **ASKED, **limits)) == plan(PROFILE, 9, **ASKED, **limits)
    assert requested_plan(PROFILE, PlanRequest(max_nodes=9)) != plan(PROFILE, 9, **ASKED)


def test_default_budget_is_the_largest_timed_pass():
    profile = Profile.load(ROOT / "docs" / "profiles" / "bundled-2-cores-llama-cpp-f16.yaml")
    assert plan(profile).solution.max_nodes == profile.at(sampling=profile.acceptances[0].sampling).max_nodes < 512


def test_default_budget_of_a_schedule_is_the_largest_pass_timed_at_every_point():
    most = min(latency.verify.max_tokens for latency in PROFILE.latencies)
    assert schedule(PROFILE, max_depth=1) == schedule(PROFILE, max_nodes=most, max_depth=1)


def test_schedules_need_several_points_and_speed():
    assert count_scheduled_points(PROFILE, PlanRequest()) == len(FOUR_CONDITIONS)
    assert count_scheduled_points(PROFILE, PlanRequest(objective="tokens")) == 0
    assert count_scheduled_points(invented(), PlanRequest()) == 0


def test_invalid_values_raise():
    for fields, reason in (
        ({"max_nodes": 0}, "max_nodes: expected at least 1. Got 0."),
        ({"objective": "fun"}, "objective: expected speed or tokens. Got 'fun'."),
        ({"raw": 1}, "raw: expected True or False. Got 1"),
        ({"rule": 3}, "rule: expected text. Got 3"),
        ({"temperature": True}, "temperature: expected a number. Got True"),
        ({"context_tokens": -1}, "context_tokens: expected at least 0. Got -1."),
        ({"batch_size": 0}, "batch_size: expected at least 1. Got 0."),
        ({"extrapolate": None}, "extrapolate: expected True or False. Got None"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            PlanRequest(**fields)
        assert str(caught.value).startswith(reason)
