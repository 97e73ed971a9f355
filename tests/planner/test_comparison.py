"""Trees side by side: predictions as `step_model` gives them, and the best of the same size by enumeration."""

import itertools

import numpy as np
import pytest

from tests.cli.invented import TABLE, invented
from tests.scripts import ROOT
from treeopt.planner import PlanRequest, plan, step_model
from treeopt.planner.comparison import compare
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, chain, k_ary

PROFILES = ROOT / "docs" / "profiles"


def every_tree(nodes: int) -> list[TokenTree]:
    """Return every tree of `nodes` nodes, at most as deep as measured."""
    parents = itertools.product(*(range(node) for node in range(1, nodes)))
    level_order = [item for item in parents if list(item) == sorted(item)]
    return [tree for tree in (TokenTree([-1, *item]) for item in level_order) if tree.max_depth <= len(TABLE.p)]


@pytest.fixture(scope="module")
def model():
    return step_model(invented())


@pytest.mark.parametrize("nodes", [1, 2, 4, 6])
def test_best_of_size_is_as_fast_as_trees_with_most_tokens(model, nodes):
    trees = every_tree(nodes)
    most: dict[int, float] = {}
    for tree in trees:
        most[tree.max_depth] = max(most.get(tree.max_depth, 0.0), model.tokens_per_step(tree))
    fullest = [tree for tree in trees if model.tokens_per_step(tree) == most[tree.max_depth]]
    for tree, row in zip(trees, compare(model, trees), strict=True):
        assert row.prediction.speedup.value == pytest.approx(model.speedup(tree))
        assert row.same_size.tree.nodes == nodes
        assert row.same_size.speedup.value >= row.prediction.speedup.value
        assert row.same_size.speedup.value >= max(map(model.speedup, fullest)) * (1 - 1e-9)


def test_a_bad_tree_has_better_ones_of_its_size(model):
    (row,) = compare(model, [k_ary(3, 2)])
    assert row.same_size.speedup.value > row.prediction.speedup.value * 1.05


def test_unmeasured_trees_have_no_prediction(model):
    deep, large = chain(len(TABLE.p) + 1), TokenTree([-1, *[0] * 40])
    rows = compare(model, [deep, chain(2), large])
    assert [row.prediction is None for row in rows] == [True, False, True]
    assert "measured to depth 4" in rows[0].unknown
    assert "1 to 32 tokens" in rows[2].unknown
    assert rows[0].same_size is None


def test_ranks_that_were_not_measured_add_nothing(model):
    narrow, wide = TokenTree([-1, 0, 0, 0]), TokenTree([-1, 0, 0, 0, 0, 0])
    rows = compare(model, [narrow, wide])
    assert rows[0].prediction.tokens_per_step.value == pytest.approx(rows[1].prediction.tokens_per_step.value)
    assert np.isclose(rows[0].prediction.tokens_per_step.value, 1 + TABLE.p[0].sum())


def test_tree_of_unmeasured_ranks_is_the_best_of_its_size():
    """The trees of most tokens have two nodes then, whatever the budget."""
    model = step_model(invented(tables=[AcceptanceTable([[0.5]])]))
    tree = TokenTree([-1, 0, 0, 0])
    (row,) = compare(model, [tree])
    assert row.same_size.tree == tree


def test_the_best_of_a_size_is_never_slower_than_the_tree():
    """The solver does not know the dependence between depths, which predictions include."""
    shipped = Profile.load(PROFILES / "bundled-2-cores-surface.yaml")
    request = PlanRequest(context_tokens=200, batch_size=3, temperature=0.6)
    tree = plan(Profile.load(PROFILES / "bundled-2-cores.yaml")).choice.tree
    (row,) = compare(step_model(shipped, request), [tree])
    assert row.same_size.speedup.value >= row.prediction.speedup.value
