"""What is raced at a batch size: the plan's choice there, those of the sizes beside, good chains, plain decoding."""

from dataclasses import replace

import pytest

from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, benchmarks, plan, requested_plan
from treeopt.planner.benchmarks import PLAIN, plan_batch_sizes, planned_candidates, tree_candidates
from treeopt.planner.tokens import token_model
from treeopt.trees import chain, level_widths

P = [[0.7, 0.15], [0.6, 0.2], [0.6, 0.2], [0.5, 0.2]]
NODES = 7
SIZES = (1, 4, 9)


@pytest.fixture(scope="module")
def measured():
    """Return the profile of a machine on which a node costs the more the more texts there are."""
    return profile(
        [
            latency(seconds(lambda n, b=batch: 1 + 0.02 * b * n, lambda _: 0.05, nodes=NODES), batch_size=batch)
            for batch in SIZES
        ],
        [acceptance(P)],
    )


REQUEST = PlanRequest(rule="sequoia", temperature=0.6)


def test_the_choice_is_the_plan_of_each_size(measured):
    found = planned_candidates(plan_batch_sizes(measured, REQUEST, (1, 3, 9)))
    for size, rivals in found.items():
        made = plan(measured, NODES, batch_size=size)
        assert rivals.chosen == made.choice.tree
        assert rivals.trees[0] == PLAIN
        assert {made.choice.tree, made.chain.tree} <= set(rivals.trees)
        assert rivals.predicted[rivals.chosen].speedup.value == made.choice.speedup.value
        assert rivals.predicted.keys() == set(rivals.trees)


def test_choices_of_the_sizes_beside_are_raced_too(measured):
    found = planned_candidates(plan_batch_sizes(measured, REQUEST, (9, 1, 3)))
    assert list(found) == [1, 3, 9]
    assert len({each.chosen for each in found.values()}) > 1
    assert {found[1].chosen, found[9].chosen} <= set(found[3].trees)
    assert found[3].chosen in found[1].trees


def test_chains_a_token_shorter_and_longer_than_the_best_are_raced(measured):
    for size, rivals in planned_candidates(plan_batch_sizes(measured, REQUEST, (1, 9))).items():
        length = plan(measured, NODES, batch_size=size).chain.tree.max_depth
        assert {chain(length - 1), chain(length), chain(length + 1)} <= set(rivals.trees)
        assert len(set(rivals.trees)) == len(rivals.trees)


def test_chains_beyond_what_was_measured_are_not():
    cheap = profile([latency(seconds(lambda _: 1, lambda _: 0.001, nodes=4))], [acceptance(P)])
    (found,) = planned_candidates(plan_batch_sizes(cheap, REQUEST, (1,))).values()
    assert chain(3) in found.trees
    assert max(tree.nodes for tree in found.trees) == 4


def test_where_drafting_never_pays_one_draft_token_is_raced():
    dear = profile([latency(seconds(lambda n: n, lambda _: 5, nodes=4))], [acceptance(P)])
    (found,) = planned_candidates(plan_batch_sizes(dear, REQUEST, (1,))).values()
    assert found.chosen == PLAIN
    assert chain(1) in found.trees


def test_a_tree_is_raced_with_plain_decoding_and_the_faster_by_prediction_is_named(measured):
    drafts, tree = token_model(measured.acceptance()), level_widths([2, 2])
    found = tree_candidates(measured, drafts, dict.fromkeys((1, 9, 20)), [tree])
    assert {each.trees for each in found.values()} == {(PLAIN, tree)}
    faster = {size: plan(measured, NODES, batch_size=size).model.speedup(tree) > 1 for size in (1, 9)}
    assert {size: found[size].chosen for size in (1, 9)} == {size: tree if faster[size] else PLAIN for size in (1, 9)}
    assert (found[20].chosen, found[20].predicted) == (None, {})  # nothing was measured there


def test_a_schedule_names_its_own_and_what_was_not_measured_is_not_predicted(measured):
    drafts, large = token_model(measured.acceptance()), chain(NODES)
    found = tree_candidates(measured, drafts, {1: large, 4: PLAIN}, [large, PLAIN])
    assert [each.chosen for each in found.values()] == [large, PLAIN]
    assert all(each.predicted.keys() == {PLAIN} for each in found.values())


def test_one_rule_for_all_is_that_of_the_fewest_texts_and_each_size_is_planned_once(measured, monkeypatch):
    better = acceptance([[0.75, 0.15], [0.7, 0.2], [0.7, 0.2], [0.6, 0.2]], rule="target")
    several = replace(measured, acceptances=(*measured.acceptances, better))
    asked = []

    def noted(profile, request):
        asked.append((request.batch_size, request.rule))
        return requested_plan(profile, request)

    monkeypatch.setattr(benchmarks, "requested_plan", noted)
    plans = plan_batch_sizes(several, PlanRequest(), (9, 4))
    assert asked == [(4, None), (9, "target")]
    assert [each.model.point.batch_size for each in plans.values()] == [4, 9]
    alone = plan_batch_sizes(several, PlanRequest(rule="target", temperature=0.6), (4, 9))
    assert [each.choice.tree for each in plans.values()] == [each.choice.tree for each in alone.values()]


def test_sizes_beyond_those_measured_are_refused(measured):
    with pytest.raises(InfeasibleError, match="batch 16 was not measured"):
        plan_batch_sizes(measured, REQUEST, (1, 16))
