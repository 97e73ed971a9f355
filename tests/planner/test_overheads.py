"""Host overhead of a step: fitted to timed trees, and predicted for others."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from tests.support.invented_machines import MACHINES, profile_of
from treeopt.planner import step_model
from treeopt.planner.overheads import fit_overheads
from treeopt.records.latency import Timing
from treeopt.records.step_latency import RuleSteps, TimedTree
from treeopt.trees import TokenTree, chain, kind_of, level_widths

PROBES = (
    chain(1),
    chain(2),
    chain(5),
    chain(8),
    level_widths([2, 2, 2]),
    level_widths([3, 3, 2]),
    TokenTree([-1, 0, 0]),
)
NODES = 9
VERIFY_S = 0.9 + 0.06 * np.arange(1, NODES + 1)
DRAFT_S = 0.15 + 0.004 * np.arange(1, NODES + 1)
TRUE = (0.05, 0.01, 0.002, 0.03)
"""Seconds a step, a level, a node, and where a tree branches."""


def overhead_s(tree, numbers=TRUE):
    step, level, node, branching = numbers
    has_siblings = len(set(tree.parents.tolist())) < tree.nodes
    return step + level * tree.max_depth + node * tree.nodes + branching * has_siblings


def step_s(tree, numbers=TRUE):
    drafted = sum(DRAFT_S[width - 1] for width in tree.draft_widths)
    return VERIFY_S[tree.nodes - 1] + drafted + overhead_s(tree, numbers)


def passes_s(trees):
    return np.array([step_s(item.tree, (0, 0, 0, 0)) for item in trees])


def timed(numbers=TRUE, probes=PROBES):
    return tuple(TimedTree(tree=tree, steps=Timing([step_s(tree, numbers)])) for tree in probes)


def medians(trees):
    return np.array([item.steps.median_s for item in trees])


def nearest(features, values):
    """Return the coefficients by scipy: that of a level may be negative, as the difference of two that are not."""
    step, level, less, node, branching = nnls(np.insert(features, 2, -features[:, 1], axis=1), values)[0]
    return step, level - less, node, branching


@pytest.mark.parametrize("seed", range(4))
def test_fit_is_least_squares_with_only_levels_negative(seed):
    rng = np.random.default_rng(seed)
    trees = timed()
    times_s = medians(trees)
    steps_s = times_s + rng.normal(0, 0.03, (30, len(trees)))
    features = np.array([[1, tree.max_depth, tree.nodes, (kind_of(tree) == "tree")] for tree in PROBES], float)

    result = np.array(fit_overheads(trees, steps_s - passes_s(trees))).T
    expected = [nearest(features / times_s[:, None], (item - passes_s(trees)) / times_s) for item in steps_s]
    np.testing.assert_allclose(result, expected, atol=1e-9)
    assert result[:, [0, 2, 3]].min() == 0  # otherwise this would be plain least squares
    assert result[:, 1].min() < 0


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("overhead", [(0.001, 0, 0, 0), (0.002, 0.001, 0, 0), (0.002, -0.0002, 0, 0)])
def test_chains_attribute_overhead_to_step_and_levels(length, overhead):
    """A chain has a node for every level, and none branches."""
    if length == 1:
        overhead = (overhead[0], 0, 0, 0)  # one chain does not show the time of a level either
    trees = timed(overhead, [chain(depth) for depth in range(1, length + 1)])
    result = fit_overheads(trees, medians(trees) - passes_s(trees))

    assert np.array(result) == pytest.approx(np.array(overhead), abs=1e-9)
    drawn = fit_overheads(trees, np.stack([medians(trees)] * 3) - passes_s(trees))
    np.testing.assert_allclose(np.array(drawn).T, [overhead] * 3, atol=1e-9)


def test_trees_of_one_depth_differ_by_their_nodes():
    overhead = (0.03, 0, 0.002, 0)
    trees = timed(overhead, [TokenTree([-1, *[0] * children]) for children in (2, 4, 8)])
    assert np.array(fit_overheads(trees, medians(trees) - passes_s(trees))) == pytest.approx(
        np.array(overhead), abs=1e-9
    )


def with_steps(numbers):
    profile = profile_of(MACHINES["nodes cost"], [[0.6, 0.2]] * 8)
    (latency,) = profile.latencies
    return replace(profile, latencies=(replace(latency, steps=(RuleSteps(rule="sequoia", trees=timed(numbers)),)),))


@pytest.mark.parametrize("tree", [chain(3), chain(7), level_widths([4, 2]), level_widths([2, 2, 1, 1])], ids=repr)
def test_overhead_of_untimed_tree_is_predicted(tree):
    model = step_model(with_steps(TRUE))
    assert model.step_s(tree) == pytest.approx(step_s(tree), rel=1e-9)
    assert step_model(profile_of(MACHINES["nodes cost"], [[0.6, 0.2]] * 8)).step_s(tree) != pytest.approx(step_s(tree))


def test_negative_costs_of_nodes_and_branching_are_noise():
    model = step_model(with_steps((0.05, 0.0, -0.01, -0.02)))
    assert model.costs.branching_s == 0
    assert np.all(np.diff(model.costs.verify_s[1:]) >= 0)
    features = np.array([[1, tree.max_depth, tree.nodes, (kind_of(tree) == "tree")] for tree in PROBES], float)
    weight = 1 / np.array([step_s(tree, (0.05, 0.0, -0.01, -0.02)) for tree in PROBES])
    values = [overhead_s(tree, (0.05, 0.0, -0.01, -0.02)) for tree in PROBES]
    step, level, node, branching = nearest(features * weight[:, None], values * weight)
    assert model.costs.overhead_s == pytest.approx(step)  # the step does not go on making up for the others
    assert model.costs.draft.overhead_s == pytest.approx(level)
    assert (node, branching) == (0, 0)
