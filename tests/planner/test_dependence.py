"""Predictions where acceptance is not as independent as a table says: the replay puts them right."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import MACHINES, profile_of
from tests.support.slow import slow
from treeopt.planner import plan, step_model
from treeopt.planner.dependence import Dependence
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import REJECTED, count_acceptance
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.trees import chain, level_widths

DEPTH, BRANCHING = 6, 3
TREES = [chain(1), chain(3), chain(6), level_widths([2, 2, 1]), level_widths([2, 2, 2, 1, 1])]


def sticky_sequences(count, positions, rng):
    """Return ranks of sequences in which easy and hard stretches alternate, so that rejections come in bunches."""
    hard = np.cumsum(rng.random((count, positions)) >= 0.9, axis=1) % 2
    below = np.cumsum([[0.92, 0.04, 0.01], [0.3, 0.3, 0.1]], axis=1)[hard]  # (count, positions, 3)
    ranks = (rng.random((count, positions, 1)) >= below).sum(axis=-1)
    return list(np.where(ranks == BRANCHING, REJECTED, ranks))


def measured(ranks, *, depth=DEPTH):
    """Return the acceptance that would be measured at temperature 0 on sequences with these accepted ranks."""
    counts = [count_acceptance((item[:, None] == np.arange(BRANCHING)).astype(float), item, depth) for item in ranks]
    sums = SequenceSums([item.reached for item in counts], [item.accepted for item in counts])
    return MeasuredAcceptance(
        rule="sequoia",
        sampling=Sampling(),
        prompts=len(ranks),
        positions=sum(map(len, ranks)),
        table=sums.table(),
        sequences=sums,
        accepted_ranks=AcceptedRanks(ranks),
    )


def decoded(sequences, tree):
    """Decode the sequences, node by node; return tokens per step."""
    tokens = steps = 0
    parents = tree.parents.tolist()
    children = [[child for child, parent in enumerate(parents) if parent == node] for node in range(tree.nodes)]
    for ranks in (sequence.tolist() for sequence in sequences):
        position = 0
        while position + tree.max_depth < len(ranks):
            node = 0
            while True:
                rank, position, tokens = ranks[position], position + 1, tokens + 1
                if rank == REJECTED or rank >= len(children[node]):
                    break
                node = children[node][rank]
            steps += 1
    return tokens / steps


@pytest.fixture(scope="module")
def ranks():
    return sticky_sequences(40, 300, np.random.default_rng(1))


def shrunk(table, replayed, weight):
    """Return the mean of two predictions by the weight of the second."""
    return (1 - weight) * table + weight * replayed


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_greedy_prediction_is_the_replay_except_for_the_weight(ranks, tree):
    acceptance = measured(ranks)
    exact, dependence = decoded(ranks, tree), Dependence(acceptance.table, acceptance.accepted_ranks)
    expected = shrunk(acceptance.table.expected_tokens(tree), exact, dependence.weight(tree))
    assert dependence.tokens(tree) == pytest.approx(expected, rel=1e-9)
    assert dependence.tokens(tree) == pytest.approx(exact, rel=2e-3)


def test_weight_of_replay_increases_smoothly_with_steps(ranks):
    acceptance = measured(ranks)
    for tree in (TREES[0], TREES[4]):
        weights = [
            Dependence(acceptance.table, AcceptedRanks([ranks[0][: tree.max_depth + more]])).weight(tree)
            for more in range(1, 290)
        ]
        assert weights == sorted(weights)
        assert weights[0] < 0.1
        assert np.diff(weights).max() < 0.04
        assert Dependence(acceptance.table, acceptance.accepted_ranks).weight(tree) > 0.98


def test_table_alone_is_wrong(ranks):
    table = measured(ranks).table
    errors = [table.expected_tokens(tree) / decoded(ranks, tree) - 1 for tree in TREES]
    assert max(map(abs, errors)) > 0.05


@pytest.mark.parametrize(
    ("tree", "sequences", "times", "least"),
    [(TREES[3], 200, 10, 8), *slow([(TREES[3], 400, 40, 33)])],
    ids=repr,
)
def test_intervals_contain_the_tokens_of_other_sequences(tree, sequences, times, least):
    rng = np.random.default_rng(2)
    truth = decoded(sticky_sequences(sequences, 300, rng), tree)
    held = 0
    for _ in range(times):
        acceptance = measured(sticky_sequences(24, 170, rng))
        profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
        predicted = step_model(profile, PlanRequest(raw=True)).predict(tree).tokens_per_step
        held += predicted.low <= truth <= predicted.high
    assert held >= least


def test_sampled_prediction_corrects_the_table_by_a_ratio(ranks):
    """The table contains expected acceptances; the luck of the draws in the accepted ranks must not count."""
    rng = np.random.default_rng(3)
    lucky = [np.where((item == REJECTED) & (rng.random(len(item)) < 0.1), 0, item) for item in ranks]
    calm, replayed = measured(ranks).table, AcceptedRanks(lucky)
    for tree in TREES:
        share = decoded(lucky, tree) / measured(lucky).table.expected_tokens(tree)
        expected = calm.expected_tokens(tree) * share
        weight = Dependence(calm, replayed).weight(tree)
        mean = shrunk(calm.expected_tokens(tree), expected, weight)
        assert Dependence(calm, replayed).tokens(tree) == pytest.approx(mean, rel=1e-9)
        assert decoded(lucky, tree) > 1.005 * expected


def test_sequences_too_short_for_a_step_leave_the_table_alone():
    acceptance = measured([np.array([0, 0, 1]), np.array([0, 1, 0])] * 3, depth=3)
    deep = chain(3)
    assert Dependence(acceptance.table, acceptance.accepted_ranks).tokens(deep) == acceptance.table.expected_tokens(
        deep
    )
    profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
    predicted = step_model(profile, PlanRequest(raw=True)).predict(deep).tokens_per_step
    assert predicted.low < predicted.value == acceptance.table.expected_tokens(deep) < predicted.high


def test_plan_maximizes_the_corrected_speed(ranks):
    acceptance = measured(ranks)
    profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
    result = plan(profile, 9, raw=True)
    model = result.model
    assert result.tree.tokens_per_step.value == pytest.approx(decoded(ranks, result.tree.tree), rel=2e-3)
    for rival in (result.fastest.tree, *(item.tree for item in result.budgets)):
        assert model.speedup(result.tree.tree) >= model.speedup(rival)
    table_only = replace(profile, acceptances=(replace(acceptance, accepted_ranks=None),))
    assert plan(table_only, 9, raw=True).tree.tree == result.fastest.tree
