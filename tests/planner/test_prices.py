"""Prices: against the best tree of every size, found by trying every tree."""

import numpy as np
import pytest

from tests.solver.oracles import catalogue, node_value, rows_of
from tests.support.invented_machines import DEPTH, NODES, drawn_table
from treeopt.planner import prices
from treeopt.planner.prices import ListedNodes, priced
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver.best_first import top_nodes
from treeopt.trees import TokenTree


def drawn(seed: int, kind: str):
    """Return a table, the prices of internal nodes at each depth, and the value that trees of 2, 3, … nodes need: more than the root's."""
    rng = np.random.default_rng(seed)
    p, price = drawn_table(rng, DEPTH, kind), rng.choice([0.0, 0.05, 0.2, 0.6]) * rng.random(DEPTH)
    return p, price, rng.uniform(1.0, 1.4) + rng.choice([0.01, 0.05, 0.2]) * np.arange(NODES - 1)


def best_values(p, price, depth: int) -> np.ndarray:
    """Return (NODES + 1,): the largest value of a tree of exactly n nodes, by trying every tree."""
    trees, rows = catalogue(NODES), rows_of(p, DEPTH)
    values = trees.holds @ np.array([node_value(path, rows) for path in trees.paths])
    values = values - trees.draft_widths[:, : len(price)] @ price
    found = np.full(NODES + 1, -np.inf)
    np.maximum.at(found, trees.size[trees.depth <= depth], values[trees.depth <= depth])
    return found


def beyond(excess: np.ndarray) -> np.ndarray:
    """Return what stands for the speed: trees that are not worth their seconds are not asked about."""
    return np.maximum(0.0, excess)


def bounds_of(p, price, worth, depth: int, listed: int, fast_enough: float = 0.0):
    nodes = ListedNodes(top_nodes(AcceptanceTable(p).rows(DEPTH), listed))
    return priced(nodes.to_depth(depth), price, worth, beyond, fast_enough, about=4)


kinds = pytest.mark.parametrize("kind", ["falling", "rising", "ranked"])


@kinds
@pytest.mark.parametrize("listed", [3, NODES, 40])
def test_no_tree_exceeds_the_bound(kind, listed):
    for seed in range(25):
        p, price, worth = drawn(seed, kind)
        for depth in (1, 3, DEPTH):
            excess = beyond(best_values(p, price, depth)[2:] - worth)
            assert np.all(excess <= bounds_of(p, price, worth, depth, listed).bounds + 1e-12), (seed, depth)


@kinds
def test_the_largest_bound_is_that_of_a_tree(kind, monkeypatch):
    """With all nodes listed nothing is left open, and the tree returned is the one."""
    monkeypatch.setattr(prices, "KNAPSACK_NODES", 1000)
    for seed in range(60):
        p, price, worth = drawn(seed, kind)
        found, most = bounds_of(p, price, worth, DEPTH, 4000), best_values(p, price, DEPTH)
        assert found.bounds.max() == pytest.approx(beyond(most[2:] - worth).max(), abs=1e-12), seed
        if found.bounds.max() > 1e-12:
            tree, asked = TokenTree.ordered(found.parents), int(found.bounds.argmax())
            value = AcceptanceTable(p).expected_tokens(tree) - tree.draft_widths @ price[: tree.max_depth]
            assert tree.nodes <= asked + 2
            assert value - worth[asked] == pytest.approx(found.bounds[asked], abs=1e-12), seed


def test_without_the_knapsack_it_is_nearly_so(monkeypatch):
    """Lines alone are above the trees by little, and never below."""
    monkeypatch.setattr(prices, "MAX_CELLS", 0)
    above = []
    for seed in range(80):
        p, price, worth = drawn(seed, "falling")
        found, most = bounds_of(p, price, worth, DEPTH, 4000), best_values(p, price, DEPTH)
        above.append(found.bounds.max() - beyond(most[2:] - worth).max())
    assert min(above) >= -1e-12
    assert np.median(above) <= 1e-12
    assert max(above) > 1e-6  # else the knapsack would never be needed


def test_sizes_that_are_not_asked_about_do_not_count():
    p, price, worth = drawn(1, "falling")
    most = best_values(p, price, DEPTH)
    worth[3:] = np.inf
    found = bounds_of(p, price, worth, DEPTH, 4000)
    assert found.bounds.max() == pytest.approx((most[2:5] - worth[:3]).max(), abs=1e-12)
    assert found.bounds.max() > 0
    assert not found.bounds[3:].any()


def test_what_is_fast_enough_is_not_made_tighter(monkeypatch):
    """One price suffices where every bound is low enough after it."""
    tried = []
    best = prices.best_of_any_size
    monkeypatch.setattr(prices, "best_of_any_size", lambda *given: tried.append(1) or best(*given))
    p, price, worth = drawn(2, "falling")
    bounds_of(p, price, worth, DEPTH, 40, fast_enough=np.inf)
    assert len(tried) == 1
