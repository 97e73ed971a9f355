"""Acceptance tables of a block head: counts by hand, and the average of a law over parents."""

import numpy as np
import pytest

from tests.scripts import ROOT, script
from treeopt.profiler.acceptance.heads import BlockMarginals
from treeopt.records.acceptance import AcceptanceTable
from treeopt.trees import TokenTree, level_widths

script = script(ROOT / "benchmarks" / "block_tables.py")


def test_reach_is_counted_over_all_roots():
    tree = TokenTree([-1, 0, 0, 1])
    ranks = np.array([[0, 0], [1, 0], [0, 3], [-1, 0], [0, 0], [0, 0]])  # the last two roots end within a block
    reach = script.measured_reach(tree, [BlockMarginals(np.zeros((6, 2, 4)), ranks)])
    assert reach.tolist() == [1.0, 0.5, 0.25, 0.25]


def test_average_over_parents_keeps_the_reach_of_whole_levels():
    law = AcceptanceTable([[[0.6, 0.3], [0.1, 0.05]]] * 3)
    average = script.average_over_parents(law)
    assert average.p[1].tolist() == pytest.approx([(0.36 + 0.03) / 0.9, (0.18 + 0.015) / 0.9])
    for depth in (1, 2, 3):
        tree = level_widths([2**level for level in range(1, depth + 1)])
        assert average.reach(tree).sum() == pytest.approx(law.reach(tree).sum())


def test_trees_for_all_parents_alike_reach_more_than_they_predict_and_less_than_the_best():
    for line in script.published_rates():
        predicted, reached, best = map(float, line.split()[1:4])
        assert predicted < reached <= best
