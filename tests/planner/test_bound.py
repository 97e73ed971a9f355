"""Bounds of boxes: no tree inside a box is faster than its bound, and boxes are split without loss."""

import numpy as np
import pytest

from tests.planner.test_fastest import costs_of
from tests.solver.oracles import catalogue
from tests.support.invented_machines import NODES, drawn_seconds, drawn_table
from tests.support.planner_oracles import every_speedup
from treeopt.planner.bound import Box, BoxBound, bounded
from treeopt.planner.fastest import NODES_PRICED
from treeopt.planner.prices import ListedNodes
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
from treeopt.solver.best_first import top_nodes

DEPTH = 4


def drawn_box(rng: np.random.Generator, depth: int = DEPTH, widest: int = 5) -> Box:
    ends = np.sort(rng.integers(1, widest + 1, (2, depth)), axis=0)
    ends[:, 0] = 1  # the root is one node
    return Box(ends[0], ends[1])


def inside(box: Box) -> np.ndarray:
    """Return which trees of the catalogue lie in a box; a level that must be wide must be there."""
    trees = catalogue(NODES)
    widths = trees.draft_widths[:, : len(box.least)]
    fits = ((widths == 0) & (box.least == 1)) | ((widths >= box.least) & (widths <= box.most))
    return np.all(fits, axis=1) & (trees.depth <= len(box.least)) & (trees.size > 1)


def drawn_bound(
    seed: int, kind: str, priced: int = NODES_PRICED * NODES, fastest_known: bool = False
) -> tuple[BoxBound, float, float]:
    """Return the bound of a random box, the speedup of its fastest tree, and the speedup that was known before."""
    rng = np.random.default_rng(seed)
    p, machine, box = drawn_table(rng, DEPTH, kind), drawn_seconds(rng, NODES), drawn_box(rng)
    speedups = every_speedup(p, machine, NODES, DEPTH)
    known = float(speedups.max() if fastest_known else rng.choice(speedups[speedups > 0]))
    table = AcceptanceTable(p)
    narrow = kind == "falling" and rng.random() < 0.5
    solution = solve(table, NODES, DEPTH, draft_widths=box.most.tolist() if narrow else None)
    nodes = ListedNodes(top_nodes(table.rows(DEPTH), priced))
    fastest = float(speedups[inside(box)].max(initial=0.0))
    return bounded(box, solution, costs_of(machine), nodes, known), fastest, known


class TestBounded:
    @pytest.mark.parametrize("kind", ["falling", "rising", "ranked"])
    def test_no_tree_in_the_box_is_faster(self, kind):
        for seed in range(300):
            found, fastest, known = drawn_bound(seed, kind)
            assert max(fastest, known) <= found.speedup * (1 + 1e-9), seed

    @pytest.mark.parametrize("kind", ["falling", "rising", "ranked"])
    @pytest.mark.parametrize("priced", [1, 3, NODES])
    def test_nor_where_few_nodes_are_priced(self, kind, priced):
        """What is not listed is bounded by the lightest of what is."""
        for seed in range(100):
            found, fastest, _ = drawn_bound(seed, kind, priced)
            assert fastest <= found.speedup * (1 + 1e-9), seed

    def test_most_boxes_are_closed_once_the_fastest_tree_is_known(self):
        """A bound that were always far above would prove as little as none."""
        found = [drawn_bound(seed, "falling", fastest_known=True) for seed in range(300)]
        assert np.mean([bound.speedup == known for bound, _, known in found]) > 0.8

    def test_both_bounds_are_needed(self):
        found = [drawn_bound(seed, "falling")[0] for seed in range(300)]
        assert {bound.priced for bound in found} == {True, False}


class TestBox:
    def test_lines_lie_under_the_costs_and_touch_them(self):
        for seed in range(200):
            rng = np.random.default_rng(seed)
            costs, box = costs_of(drawn_seconds(rng, NODES)), drawn_box(rng)
            base_s, slope_s = box.lines(costs)
            for low, high, base, slope in zip(box.least, box.most, base_s, slope_s, strict=True):
                above_s = [costs.draft_s[width] - (base + slope * width) for width in range(low, high + 1)]
                assert min(above_s) == pytest.approx(0, abs=1e-12)
                assert slope >= 0

    def test_a_split_gives_every_width_to_one_half(self):
        box = Box(np.array([1, 2, 1]), np.array([1, 6, 3]))
        narrower, wider = box.split(1, 4)
        assert (narrower.least.tolist(), narrower.most.tolist()) == ([1, 2, 1], [1, 3, 3])
        assert (wider.least.tolist(), wider.most.tolist()) == ([1, 4, 1], [1, 6, 3])
        assert (box.least.tolist(), box.most.tolist()) == ([1, 2, 1], [1, 6, 3])

    @pytest.mark.parametrize("kind", ["falling", "ranked"])
    def test_halves_hold_every_tree_of_the_box(self, kind):
        split = 0
        for seed in range(200):
            rng = np.random.default_rng(seed)
            drawn_table(rng, DEPTH, kind)
            costs = costs_of(drawn_seconds(rng, NODES))
            found = drawn_bound(seed, kind)[0]
            halves = found.halves(costs)
            assert len(halves) in (0, 2)
            if not halves:
                continue
            split += 1
            np.testing.assert_array_equal(sum(inside(half).astype(int) for half in halves), inside(found.box))
            assert not any(
                np.array_equal(half.least, found.box.least) and np.array_equal(half.most, found.box.most)
                for half in halves
            )
            assert all(np.all(half.least <= half.most) for half in halves)
        assert split > 50
