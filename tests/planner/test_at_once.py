"""Drafters whose one pass predicts all levels: levels are free, the pass is measured, and no number is invented."""

import dataclasses

import numpy as np
import pytest

from tests.support import planner_oracles
from tests.support.invented_machines import DEPTH, MACHINES, NODES, TABLES, acceptance, latency, profile, timing
from treeopt.planner import fastest_tree, plan
from treeopt.planner.condition import condition
from treeopt.planner.model import at_once_model
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.profile import RuleSteps, TimedTree
from treeopt.solver import solve
from treeopt.trees import chain, k_ary, level_widths

PASS_S = 0.07
NOTHING_S = 1e-9
MEASURED = ("nodes almost free", "nodes cost", "tiles of 4", "verify not monotone", "overhead dear")
SHAPES = ("falling", "not monotone", "one row for every depth", "weak")


def model_of(machine, p, drafted, **of_latency):
    measured = acceptance(p, rule="target")
    where = condition(profile([latency(machine, **of_latency)], [measured]), temperature=measured.temperature)
    return at_once_model(where, measured, drafted)


def free_levels(machine):
    """Return a machine for the oracle, on which a step's overhead holds the pass and a level takes nothing."""
    return machine._replace(draft=[0.0] * len(machine.verify), overhead=max(0.0, machine.overhead) + PASS_S)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MEASURED)
def test_the_fastest_tree_is_that_of_every_tree_there_is(name, shape):
    model = model_of(MACHINES[name], TABLES[shape], Timing([PASS_S] * 9))
    found = fastest_tree(solve(model.acceptance.table, NODES, DEPTH), model.costs)
    best = planner_oracles.every_speedup(
        model.acceptance.table.p.tolist(), free_levels(MACHINES[name]), NODES, DEPTH
    ).max()
    assert found.speedup == pytest.approx(best, rel=1e-9)
    assert model.speedup(found.tree) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", MEASURED)
def test_it_plans_as_a_profile_did_that_held_invented_times(name):
    """The arithmetic that this replaces, for its results: a level of 1e-9 s, and an overhead moved by the pass."""
    measured = latency(MACHINES[name], noise=0.05)
    nothing = Timing([NOTHING_S])
    old = dataclasses.replace(
        measured,
        draft=LatencyTable([1, NODES], [nothing, nothing]),
        overhead=Timing(measured.overhead.samples_s + PASS_S, allow_negative=True),
    )
    table = acceptance(TABLES["falling"], rule="target")
    before = plan(profile([old], [table]), NODES, rule="target").tree
    model = at_once_model(condition(profile([measured], [table])), table, Timing([PASS_S] * 9))
    now = fastest_tree(solve(model.acceptance.table, NODES, DEPTH), model.costs).tree
    predicted = model.predict("tree", now)
    assert now == before.tree
    for field in ("tokens_per_step", "step_s", "speedup"):
        assert getattr(predicted, field).value == pytest.approx(getattr(before, field).value, rel=1e-6)


def test_every_tree_of_a_size_costs_the_same_and_any_width_may_be_drafted():
    model = model_of(MACHINES["nodes cost"], TABLES["falling"], Timing([PASS_S] * 9), draft_counts=[1, 2])
    trees = [chain(6), k_ary(2, 2), level_widths([6]), level_widths([4, 2])]
    assert {tree.nodes for tree in trees} == {7}
    machine = MACHINES["nodes cost"]
    for tree in trees:
        assert model.step_s(tree) == pytest.approx(machine.verify[6] + machine.overhead + PASS_S)
    assert model.step_s(chain(0)) == machine.verify[0]
    assert model.costs.max_draft_width == NODES
    assert model.costs.draft_s.tolist() == [0.0] * (NODES + 1)


def test_levels_timed_with_another_drafter_do_not_count():
    """What whole steps with a draft model say of levels is of that draft; only their overhead is taken over."""
    machine, table = MACHINES["nodes cost"], acceptance(TABLES["falling"], rule="target")
    timed = tuple(TimedTree(tree=tree, steps=Timing([1.0 + tree.max_depth] * 9)) for tree in (chain(2), k_ary(2, 2)))
    measured = dataclasses.replace(latency(machine), steps=(RuleSteps(rule="target", trees=timed),))
    model = at_once_model(condition(profile([measured], [table])), table, Timing([PASS_S] * 9))
    assert model.step_s(chain(4)) == pytest.approx(machine.verify[4] + machine.overhead + PASS_S)


def test_the_pass_is_drawn_as_other_times_are():
    rng = np.random.default_rng(0)
    steady = model_of(MACHINES["nodes cost"], TABLES["falling"], timing(PASS_S, 0.0, rng))
    shaky = model_of(MACHINES["nodes cost"], TABLES["falling"], timing(PASS_S, 0.9, rng))
    widths = [model.predict("tree", k_ary(2, 2)).step_s for model in (steady, shaky)]
    assert widths[0].value == pytest.approx(widths[1].value)
    assert widths[0].high - widths[0].low == pytest.approx(0.0, abs=1e-12)
    assert widths[1].high - widths[1].low > 0.1 * PASS_S
