"""Predictions where acceptance is not as independent as a table says: the replay puts them right."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import MACHINES, profile_of
from tests.support.slow import slow
from treeopt.planner import plan, step_model
from treeopt.planner.dependence import Dependence
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import REJECTED, count_acceptance
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.trees import chain, level_widths

DEPTH, BRANCHING = 6, 3
TREES = [chain(1), chain(3), chain(6), level_widths([2, 2, 1]), level_widths([2, 2, 2, 1, 1])]


def sticky_texts(texts, positions, rng):
    """Return ranks of texts in which easy and hard stretches take turns: misses come in bunches."""
    found = []
    for _ in range(texts):
        easy, ranks = True, []
        for _ in range(positions):
            easy = easy if rng.random() < 0.9 else not easy
            ranks.append(
                int(rng.choice([0, 1, 2, REJECTED], p=[0.92, 0.04, 0.01, 0.03] if easy else [0.3, 0.3, 0.1, 0.3]))
            )
        found.append(np.array(ranks))
    return found


def measured(ranks, *, depth=DEPTH):
    """Return the acceptance that would be measured at temperature 0 on texts with these accepted ranks."""
    counts = [count_acceptance((each[:, None] == np.arange(BRANCHING)).astype(float), each, depth) for each in ranks]
    sums = SequenceSums([each.reached for each in counts], [each.accepted for each in counts])
    return MeasuredAcceptance(
        rule="sequoia",
        temperature=0.0,
        top_p=1.0,
        prompts=len(ranks),
        positions=sum(map(len, ranks)),
        table=sums.table(),
        texts=sums,
        accepted_ranks=AcceptedRanks(ranks),
    )


def decoded(ranks, tree):
    """Decode the texts, node by node; return tokens per step."""
    tokens = steps = 0
    for each in ranks:
        position = 0
        while position + tree.max_depth < len(each):
            node = 0
            while True:
                children = np.flatnonzero(tree.parents == node)
                rank, position, tokens = each[position], position + 1, tokens + 1
                if rank == REJECTED or rank >= len(children):
                    break
                node = int(children[rank])
            steps += 1
    return tokens / steps


@pytest.fixture(scope="module")
def ranks():
    return sticky_texts(40, 300, np.random.default_rng(1))


def shrunk(table, replayed, weight):
    """Return the mean of two predictions by the weight of the second."""
    return (1 - weight) * table + weight * replayed


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_at_temperature_0_the_prediction_is_what_decoding_yields(ranks, tree):
    """But for the weight of the table, which vanishes as more steps are replayed."""
    acceptance = measured(ranks)
    exact, dependence = decoded(ranks, tree), Dependence(acceptance.table, acceptance.accepted_ranks)
    expected = shrunk(acceptance.table.expected_tokens(tree), exact, dependence.weight(tree))
    assert dependence.tokens(tree) == pytest.approx(expected, rel=1e-9)
    assert dependence.tokens(tree) == pytest.approx(exact, rel=2e-3)


def test_the_replay_counts_the_more_the_more_steps_there_are(ranks):
    """Without a jump: one text more never moves the weight by much, once there are some."""
    acceptance = measured(ranks)
    for tree in TREES:
        weights = [
            Dependence(acceptance.table, AcceptedRanks(each)).weight(tree)
            for each in ([ranks[0][: tree.max_depth + more]] for more in range(1, 290))
        ]
        assert weights == sorted(weights)
        assert weights[0] < 0.1
        assert np.diff(weights).max() < 0.04
        whole = Dependence(acceptance.table, acceptance.accepted_ranks)
        assert whole.weight(tree) > 0.98


def test_without_outcomes_it_is_off(ranks):
    table = measured(ranks).table
    errors = [table.expected_tokens(tree) / decoded(ranks, tree) - 1 for tree in TREES]
    assert max(map(abs, errors)) > 0.05


@pytest.mark.parametrize(
    ("tree", "texts", "times", "least"),
    [(TREES[3], 120, 10, 8), *slow([(TREES[3], 400, 40, 33)])],
    ids=repr,
)
def test_intervals_hold_what_other_texts_yield(tree, texts, times, least):
    """Of 40 measurements of 24 texts the 95 % interval is to hold the true number about 38 times."""
    rng = np.random.default_rng(2)
    truth = decoded(sticky_texts(texts, 300, rng), tree)
    held = 0
    for _ in range(times):
        acceptance = measured(sticky_texts(24, 170, rng))
        profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
        predicted = step_model(profile, raw=True).predict(tree).tokens_per_step
        held += predicted.low <= truth <= predicted.high
    assert held >= least


def test_above_temperature_0_the_replay_says_by_which_share_the_table_is_off(ranks):
    """There the table counts expected acceptance and not what happened: the luck of the texts must not come back."""
    rng = np.random.default_rng(3)
    lucky = [np.where((each == REJECTED) & (rng.random(len(each)) < 0.1), 0, each) for each in ranks]
    calm, replayed = measured(ranks).table, AcceptedRanks(lucky)
    for tree in TREES:
        share = decoded(lucky, tree) / measured(lucky).table.expected_tokens(tree)
        expected = calm.expected_tokens(tree) * share
        weight = Dependence(calm, replayed).weight(tree)
        mean = shrunk(calm.expected_tokens(tree), expected, weight)
        assert Dependence(calm, replayed).tokens(tree) == pytest.approx(mean, rel=1e-9)
        assert decoded(lucky, tree) > 1.005 * expected


def test_texts_too_short_for_a_step_leave_the_table_alone():
    acceptance = measured([np.array([0, 0, 1]), np.array([0, 1, 0])] * 3, depth=3)
    deep = chain(3)
    assert Dependence(acceptance.table, acceptance.accepted_ranks).tokens(deep) == acceptance.table.expected_tokens(
        deep
    )
    profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
    predicted = step_model(profile, raw=True).predict(deep).tokens_per_step
    assert predicted.low < predicted.value == acceptance.table.expected_tokens(deep) < predicted.high


def test_a_plan_takes_what_the_replay_says_is_fastest(ranks):
    acceptance = measured(ranks)
    profile = replace(profile_of(MACHINES["nodes cost"], acceptance.table.p), acceptances=(acceptance,))
    found = plan(profile, 9, raw=True)
    model = found.model
    assert found.tree.tokens_per_step.value == pytest.approx(decoded(ranks, found.tree.tree), rel=2e-3)
    for rival in (found.fastest.tree, *(each.tree for each in found.budgets)):
        assert model.speedup(found.tree.tree) >= model.speedup(rival)
    table_only = replace(profile, acceptances=(replace(acceptance, accepted_ranks=None),))
    assert plan(table_only, 9, raw=True).tree.tree == found.fastest.tree
