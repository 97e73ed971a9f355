"""Trees to benchmark: the candidates of each batch size, and the grid of one plan."""

from dataclasses import replace

import pytest

from tests.support.invented_machines import acceptance, latency, profile, profile_of, seconds
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, plan, requested_plan
from treeopt.planner.benchmarks import (
    CHAIN_DEPTHS,
    DEPTHS,
    NODES,
    PLAIN,
    plan_batch_sizes,
    planned_candidates,
    predict_grid,
    tree_candidates,
)
from treeopt.planner.tokens import token_model
from treeopt.records.latency import Timing
from treeopt.records.step_latency import RuleOverhead
from treeopt.trees import chain, level_widths

P = [[0.7, 0.15], [0.6, 0.2], [0.6, 0.2], [0.5, 0.2]]
MOST_NODES = 7
SIZES = (1, 4, 9)


@pytest.fixture(scope="module")
def measured():
    """Return the profile of a machine on which a node costs the more the more sequences there are."""
    return profile(
        [
            latency(seconds(lambda n, b=batch: 1 + 0.02 * b * n, lambda _: 0.05, nodes=MOST_NODES), batch_size=batch)
            for batch in SIZES
        ],
        [acceptance(P)],
    )


REQUEST = PlanRequest(rule="sequoia", temperature=0.6)


def test_candidates_contain_choice_chain_and_plain(measured):
    result = planned_candidates(plan_batch_sizes(measured, REQUEST, (1, 3, 9)))
    for size, rivals in result.items():
        made = plan(measured, MOST_NODES, batch_size=size)
        assert rivals.chosen == made.choice.tree
        assert rivals.trees[0] == PLAIN
        assert {made.choice.tree, made.chain.tree} <= set(rivals.trees)
        assert rivals.predicted[rivals.chosen].speedup.value == made.choice.speedup.value
        assert rivals.predicted.keys() == set(rivals.trees)


def test_candidates_contain_choices_of_neighbouring_sizes(measured):
    result = planned_candidates(plan_batch_sizes(measured, REQUEST, (9, 1, 3)))
    assert list(result) == [1, 3, 9]
    assert len({item.chosen for item in result.values()}) > 1
    assert {result[1].chosen, result[9].chosen} <= set(result[3].trees)
    assert result[3].chosen in result[1].trees


def test_candidates_contain_chains_one_token_shorter_and_longer(measured):
    for size, rivals in planned_candidates(plan_batch_sizes(measured, REQUEST, (1, 9))).items():
        length = plan(measured, MOST_NODES, batch_size=size).chain.tree.max_depth
        assert {chain(length - 1), chain(length), chain(length + 1)} <= set(rivals.trees)
        assert len(set(rivals.trees)) == len(rivals.trees)


def test_chains_beyond_the_measured_pass_are_left_out():
    cheap = profile([latency(seconds(lambda _: 1, lambda _: 0.001, nodes=4))], [acceptance(P)])
    (result,) = planned_candidates(plan_batch_sizes(cheap, REQUEST, (1,))).values()
    assert chain(3) in result.trees
    assert max(tree.nodes for tree in result.trees) == 4


def test_one_draft_token_is_a_candidate_if_drafting_never_pays():
    dear = profile([latency(seconds(lambda n: n, lambda _: 5, nodes=4))], [acceptance(P)])
    (result,) = planned_candidates(plan_batch_sizes(dear, REQUEST, (1,))).values()
    assert result.chosen == PLAIN
    assert chain(1) in result.trees


def test_given_tree_is_compared_with_plain_decoding(measured):
    drafts, tree = token_model(measured.acceptance()), level_widths([2, 2])
    result = tree_candidates(measured, drafts, dict.fromkeys((1, 9, 20)), [tree])
    assert {item.trees for item in result.values()} == {(PLAIN, tree)}
    faster = {size: plan(measured, MOST_NODES, batch_size=size).model.speedup(tree) > 1 for size in (1, 9)}
    assert {size: result[size].chosen for size in (1, 9)} == {size: tree if faster[size] else PLAIN for size in (1, 9)}
    assert (result[20].chosen, result[20].predicted) == (None, {})  # nothing was measured there


def test_scheduled_trees_beyond_the_measured_pass_have_no_prediction(measured):
    drafts, large = token_model(measured.acceptance()), chain(MOST_NODES)
    result = tree_candidates(measured, drafts, {1: large, 4: PLAIN}, [large, PLAIN])
    assert [item.chosen for item in result.values()] == [large, PLAIN]
    assert all(item.predicted.keys() == {PLAIN} for item in result.values())


def test_all_sizes_have_the_rule_of_the_smallest(measured):
    better = acceptance([[0.75, 0.15], [0.7, 0.2], [0.7, 0.2], [0.6, 0.2]], rule="target")
    slow_at_9 = replace(measured.latencies[2], rule_overheads=(RuleOverhead(rule="target", overhead=Timing([9.0])),))
    several = replace(
        measured, latencies=(*measured.latencies[:2], slow_at_9), acceptances=(*measured.acceptances, better)
    )
    assert requested_plan(several, PlanRequest(batch_size=9)).rule == "sequoia"
    plans = plan_batch_sizes(several, PlanRequest(), (9, 4))
    assert {size: plan.model.point.batch_size for size, plan in plans.items()} == {4: 4, 9: 9}
    assert [plan.rule for plan in plans.values()] == ["target", "target"]


def test_unmeasured_batch_size_raises(measured):
    with pytest.raises(InfeasibleError, match="batch 16 was not measured"):
        plan_batch_sizes(measured, REQUEST, (1, 16))


MACHINES = {
    "nodes cost": seconds(lambda n: 0.9 + 0.02 * n, lambda w: 0.05 + 0.004 * w, 0.05, nodes=40),
    "drafts dear": seconds(lambda n: 1.0 + 0.01 * n, lambda _: 5.0, nodes=40),
}
GRID_P = [[0.7, 0.15, 0.05]] * 12


@pytest.fixture(scope="module", params=MACHINES)
def planned(request):
    return plan(profile_of(MACHINES[request.param], GRID_P), 40)


class TestGrid:
    def test_choice_or_fastest_tree_comes_first(self, planned):
        first, *others = predict_grid(planned)
        assert first.tree.nodes > 1
        assert first.tree == planned.choice.tree or planned.choice.tree.nodes == 1
        assert first.speedup.value >= max(item.speedup.value for item in others)

    def test_one_machine_chooses_plain_decoding_and_the_other_a_tree(self):
        choices = [plan(profile_of(machine, GRID_P), 40).choice for machine in MACHINES.values()]
        assert [choice.tree.nodes > 1 for choice in choices] == [True, False]

    def test_every_tree_appears_once_with_draft_tokens(self, planned):
        trees = [item.tree for item in predict_grid(planned)]
        assert all(tree != other for place, tree in enumerate(trees) for other in trees[:place])
        assert min(tree.nodes for tree in trees) >= 2
        assert max(tree.nodes for tree in trees) <= 40
        assert max(tree.max_depth for tree in trees) <= planned.solution.max_depth

    def test_grid_contains_chains_and_solved_trees(self, planned):
        trees = [item.tree for item in predict_grid(planned)]
        for depth in CHAIN_DEPTHS:
            assert (chain(depth) in trees) == (depth <= planned.solution.max_depth)
        for nodes in NODES:
            for depth in DEPTHS:
                if nodes <= 40 and depth <= min(planned.solution.max_depth, nodes - 1):
                    assert planned.solution.tree(nodes, depth) in trees

    def test_predictions_are_those_of_the_model(self, planned):
        for item in predict_grid(planned):
            alone = planned.model.predict(item.tree)
            assert (item.kind, item.prediction) == (alone.kind, alone.prediction)
            assert item.tokens_per_step.value == pytest.approx(planned.solution.table.expected_tokens(item.tree))

    def test_a_small_budget_has_a_small_grid(self):
        result = predict_grid(plan(profile_of(MACHINES["nodes cost"], GRID_P), 2))
        assert [item.tree for item in result] == [chain(1)]
