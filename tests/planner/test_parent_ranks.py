"""Trees of a block head, whose children are accepted less often below later children, against all small trees."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cli.invented import invented
from tests.planner.test_drafters import all_trees, at_once_s, heads
from treeopt.planner import PlanRequest, drafter_choices, requested_plan
from treeopt.planner.dependence import PRIOR_POSITIONS, condition_on_parent
from treeopt.planner.drafter_costs import tree_model
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import MeasuredTrees
from treeopt.records.sampling import Sampling
from treeopt.solver import solve

FIRST, OTHERS = (0.6, 0.3), (0.1, 0.05)
"""Acceptance by rank below first children and the root, and below all others."""
LAW = AcceptanceTable([[FIRST, OTHERS]] * 3)
DEPTHS, BRANCHING, NODES = 3, 2, 6


def drawn_ranks(seed, sequences=4, roots=4000):
    """Return ranks below roots, all drawn from the law."""
    generator = np.random.default_rng(seed)
    shape = (sequences, roots)
    ranks, parent = np.full((*shape, DEPTHS), -1), np.zeros(shape, np.int64)
    for depth in range(DEPTHS):
        rows = LAW.p[depth][parent].cumsum(axis=-1)
        rank = (generator.random((*shape, 1)) > rows).sum(axis=-1)
        alive = (rank < BRANCHING) & ((depth == 0) | (ranks[..., depth - 1] >= 0))
        ranks[..., depth] = np.where(alive, rank, -1)
        parent = np.minimum(rank, 1)
    return RootRanks(list(ranks))


def block_head(profile, ranks):
    """Return a head with the ranks below every root."""
    tables = [RootRanks([sequence]).table(DEPTHS, BRANCHING) for sequence in ranks.ranks]
    reached = np.array([table.counts for table in tables])
    sums = SequenceSums(reached, [table.p * table.counts[:, None] for table in tables])
    acceptance = MeasuredAcceptance(
        rule="target", sampling=Sampling(), prompts=4, positions=999, table=sums.table(), sequences=sums
    )
    trees = MeasuredTrees(acceptance=acceptance, root_ranks=ranks, context_tokens=256)
    return replace(heads(profile, rest=at_once_s, name="dflash"), trees=(trees,))


@pytest.fixture(scope="module")
def measured():
    """Return a profile with a head, and the model of its steps."""
    profile = invented()
    drafter = block_head(profile, drawn_ranks(0))
    point = requested_plan(profile, PlanRequest()).model.point
    return replace(profile, drafters=(drafter,)), tree_model(drafter, drafter.trees, point)


def test_the_tree_is_the_best_of_all_trees(measured):
    profile, model = measured
    _, choice = drafter_choices(profile, PlanRequest(max_nodes=NODES))
    trees = [tree for tree in all_trees(NODES, DEPTHS, BRANCHING) if tree.nodes > 1]
    assert len(trees) > 20
    assert choice.option.speedup.value == pytest.approx(max(model.speedups(trees)))


def test_trees_for_all_parents_alike_are_slower(measured):
    """The negative control: those of the table by depth and rank alone are too wide below later children."""
    _, model = measured
    solution = solve(model.acceptance.table, NODES)
    trees = [solution.tree(nodes, depth) for nodes in range(2, NODES + 1) for depth in range(1, DEPTHS + 1)]
    best = max(model.speedups(all_trees(NODES, DEPTHS, BRANCHING)))
    assert max(model.speedups(trees)) < 0.98 * best


def test_reach_is_that_of_the_law(measured):
    profile, _ = measured
    _, choice = drafter_choices(profile, PlanRequest(max_nodes=NODES))
    assert choice.reach == pytest.approx(LAW.reach(choice.option.tree), abs=0.02)


def test_limits_of_widths_are_kept(measured):
    profile, _ = measured
    _, choice = drafter_choices(profile, PlanRequest(max_nodes=NODES, level_widths=1))
    assert (choice.option.tree.level_widths <= 1).all()


def test_rows_with_few_positions_move_towards_the_tables():
    table, few = AcceptanceTable([[0.5, 0.2], [0.4, 0.1]]), RootRanks([[[1, 0], [0, 0], [], []]])
    by_parent = condition_on_parent(table, few)
    assert by_parent.p[1, 1].tolist() == pytest.approx(
        [(1 + 0.4 * PRIOR_POSITIONS) / (1 + PRIOR_POSITIONS), 0.1 * PRIOR_POSITIONS / (1 + PRIOR_POSITIONS)]
    )
    assert by_parent.p[0, 1].tolist() == pytest.approx([0.5, 0.2])  # no position
