"""Warnings about heads whose acceptance suggests that they read other states than in their training."""

from dataclasses import replace

import pytest

from tests.cli.invented import invented
from tests.planner.test_drafters import heads, lookup, lookup_rows
from treeopt.planner import PlanRequest, requested_plan
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.report.plan_warnings import head_warnings, profile_plan_warnings


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
