"""The grid of trees to try predictions on: the choice first, every tree once, each predicted as the model predicts it."""

import pytest

from tests.support.invented_machines import profile_of, seconds
from treeopt.planner import plan
from treeopt.planner.benchmarks import CHAIN_DEPTHS, DEPTHS, NODES, predict_grid
from treeopt.trees import chain

MACHINES = {
    "nodes cost": seconds(lambda n: 0.9 + 0.02 * n, lambda w: 0.05 + 0.004 * w, 0.05, nodes=40),
    "drafts dear": seconds(lambda n: 1.0 + 0.01 * n, lambda _: 5.0, nodes=40),
}
P = [[0.7, 0.15, 0.05]] * 12


@pytest.fixture(scope="module", params=MACHINES)
def planned(request):
    return plan(profile_of(MACHINES[request.param], P), 40)


def test_choice_or_fastest_tree_comes_first(planned):
    first, *others = predict_grid(planned)
    assert first.tree.nodes > 1
    assert first.tree == planned.choice.tree or planned.choice.tree.nodes == 1
    assert first.speedup.value >= max(item.speedup.value for item in others)


def test_one_machine_chooses_plain_decoding_and_the_other_a_tree():
    assert [plan(profile_of(machine, P), 40).choice.tree.nodes > 1 for machine in MACHINES.values()] == [True, False]


def test_every_tree_appears_once_with_draft_tokens(planned):
    trees = [item.tree for item in predict_grid(planned)]
    assert all(tree != other for place, tree in enumerate(trees) for other in trees[:place])
    assert min(tree.nodes for tree in trees) >= 2
    assert max(tree.nodes for tree in trees) <= 40
    assert max(tree.max_depth for tree in trees) <= planned.solution.max_depth


def test_grid_contains_chains_and_solved_trees(planned):
    trees = [item.tree for item in predict_grid(planned)]
    for depth in CHAIN_DEPTHS:
        assert (chain(depth) in trees) == (depth <= planned.solution.max_depth)
    for nodes in NODES:
        for depth in DEPTHS:
            if nodes <= 40 and depth <= min(planned.solution.max_depth, nodes - 1):
                assert planned.solution.tree(nodes, depth) in trees


def test_predictions_are_those_of_the_model(planned):
    for item in predict_grid(planned):
        alone = planned.model.predict(item.tree)
        assert item.kind == alone.kind
        assert (item.speedup, item.step_s, item.tokens_per_step) == (alone.speedup, alone.step_s, alone.tokens_per_step)
        assert item.tokens_per_step.value == pytest.approx(planned.solution.table.expected_tokens(item.tree))


def test_a_small_budget_has_a_small_grid():
    result = predict_grid(plan(profile_of(MACHINES["nodes cost"], P), 2))
    assert [item.tree for item in result] == [chain(1)]
