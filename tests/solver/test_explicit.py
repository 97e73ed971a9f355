"""The knapsack over a preorder: against every set of nodes that is a tree, with values of either sign."""

import functools
import itertools

import numpy as np
import pytest

from treeopt.solver.explicit import ExplicitTrees, best_of_any_size, best_values, sort_preorder

SIZES = pytest.mark.parametrize("nodes", [1, 2, 5, 9, 12])


@functools.cache
def drawn_parents(nodes: int, seed: int) -> tuple[int, ...]:
    """Return a random tree, parents before their children; deep for some seeds, wide for others."""
    rng = np.random.default_rng(seed)
    reach = (nodes, 3, 1)[seed % 3]
    return (-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, nodes)))


def drawn_values(nodes: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, nodes)
    return np.round(values, 1) if seed % 2 else values  # ties and zeros


def children(parents: tuple[int, ...], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def walk(parents: tuple[int, ...], node: int = 0) -> list[int]:
    """Return a node and all below it, each before its children, in rank order."""
    return [node, *itertools.chain.from_iterable(walk(parents, child) for child in children(parents, node))]


def is_tree(parents: tuple[int, ...], chosen: set[int]) -> bool:
    """Return whether the root is chosen, and with every node its parent and its earlier siblings."""
    earlier = [
        {parents[node], *(s for s in children(parents, parents[node]) if s < node)} for node in chosen if node > 0
    ]
    return 0 in chosen and all(each <= chosen for each in earlier)


@functools.cache
def every_tree(parents: tuple[int, ...]) -> list[set[int]]:
    subsets = itertools.product([False, True], repeat=len(parents))
    return [
        chosen for keep in subsets if is_tree(parents, chosen := set(itertools.compress(range(len(parents)), keep)))
    ]


def best_by_enumeration(parents: tuple[int, ...], values: np.ndarray, max_nodes: int) -> list[float]:
    """Return the largest value of a tree of 0, 1, … nodes, minus infinity where there is none."""
    best = [0.0] + [-np.inf] * max_nodes
    for chosen in every_tree(parents):
        if len(chosen) <= max_nodes:
            best[len(chosen)] = max(best[len(chosen)], sum(values[node] for node in chosen))
    return best


def int32(values: object) -> np.ndarray:
    return np.array(values, np.int32)


class TestPreorder:
    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_every_node_comes_before_its_children_in_rank_order(self, nodes, seed):
        parents = drawn_parents(nodes, seed)
        assert sort_preorder(int32(parents))[0].tolist() == walk(parents)

    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_leaving_a_node_out_loses_all_below_it_and_its_later_siblings(self, nodes, seed):
        parents = drawn_parents(nodes, seed)
        order, skip = sort_preorder(int32(parents))
        for position, node in enumerate(order.tolist()):
            siblings = [s for s in children(parents, parents[node]) if s >= node] if node else [0]
            lost = {below for sibling in siblings for below in walk(parents, sibling)}
            assert set(order[position : skip[position]].tolist()) == lost

    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_some_nodes_of_a_tree_keep_their_order(self, nodes, seed):
        """The selected preorder is that of the smaller tree by itself."""
        parents, order = drawn_parents(nodes, seed), sort_preorder(int32(drawn_parents(nodes, seed)))
        for chosen in every_tree(parents):
            kept = np.isin(order.node, list(chosen))
            alone, some = sort_preorder(int32(renumbered(parents, chosen))), order.select(kept)
            assert some.skip.tolist() == alone.skip.tolist()
            assert some.node.tolist() == [sorted(chosen)[node] for node in alone.node]


class TestBestOfAnySize:
    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_against_every_tree(self, nodes, seed):
        """In a tie the fewest nodes; values are whole numbers, so that there are ties."""
        parents = drawn_parents(nodes, seed)
        order, values = sort_preorder(int32(parents)), np.random.default_rng(seed).integers(-3, 4, nodes)
        total, chosen = best_of_any_size(values[order.node].tolist(), order.skip.tolist())
        totals = {frozenset(tree): sum(values[node] for node in tree) for tree in every_tree(parents)}
        tree = frozenset(order.node[chosen].tolist())
        assert total == totals[tree] == max(totals.values())
        assert len(tree) == min(len(each) for each, other in totals.items() if other == total)


def solve_explicit(parents, values, max_nodes):
    """Return the best tree of exactly n nodes for every n up to `max_nodes`, as prices do, all nodes kept."""
    order = sort_preorder(parents)
    return ExplicitTrees(parents, order, best_values(values[order.node], order.skip, max_nodes))


class TestSolveExplicit:
    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_against_every_tree(self, nodes, seed):
        parents, values = drawn_parents(nodes, seed), drawn_values(nodes, seed)
        for most in {1, nodes // 2 + 1, nodes, nodes + 2}:
            found = solve_explicit(int32(parents), values, most)
            np.testing.assert_allclose(found.values, best_by_enumeration(parents, values, most), rtol=0, atol=1e-12)

    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_trees_have_the_values_returned(self, nodes, seed):
        """Of all trees with the returned parents, one has the returned value."""
        parents, values = drawn_parents(nodes, seed), drawn_values(nodes, seed)
        found = solve_explicit(int32(parents), values, nodes)
        for size in range(1, nodes + 1):
            shape = found.parents(size)
            alike = [chosen for chosen in every_tree(parents) if renumbered(parents, chosen) == shape]
            totals = [sum(values[node] for node in chosen) for chosen in alike]
            assert any(abs(total - found.values[size]) < 1e-12 for total in totals)

    @pytest.mark.parametrize("seed", range(12))
    def test_from_every_position_on(self, seed):
        """Entry [i, n] is the largest value of n of the nodes from position i on."""
        nodes, parents, values = 8, drawn_parents(8, seed), drawn_values(8, seed)
        order, skip = sort_preorder(int32(parents))
        best = best_values(values[order], skip, nodes)
        for position in range(nodes + 1):
            for size in range(nodes + 1):
                assert best[position, size] == pytest.approx(after(values[order], skip, position, size), abs=1e-12)

    def test_a_small_value_is_taken_for_a_large_one_below(self):
        """Root, two children; below the first, of value -1, a node of value 5."""
        found = solve_explicit(int32([-1, 0, 0, 1]), np.array([1.0, -1.0, 0.5, 5.0]), 4)
        assert found.values.tolist() == [0, 1, 0, 5, 5.5]
        assert found.parents(3) == [-1, 0, 1]
        assert found.parents(4) == [-1, 0, 0, 1]

    def test_greed_is_not_enough(self):
        """What each node adds by itself leads astray in many of the drawn trees."""
        astray = 0
        for seed in range(30):
            parents, values = drawn_parents(9, seed), drawn_values(9, seed)
            chosen, greedy = {0}, [values[0]]
            while len(chosen) < 9:
                offers = [n for n in range(9) if n not in chosen and is_tree(parents, chosen | {n})]
                chosen.add(max(offers, key=lambda node: values[node]))
                greedy.append(sum(values[node] for node in chosen))
            astray += np.any(solve_explicit(int32(parents), values, 9).values[1:] > np.array(greedy) + 1e-9)
        assert astray > 10


def renumbered(parents: tuple[int, ...], chosen: set[int]) -> list[int]:
    kept = sorted(chosen)
    return [-1, *(kept.index(parents[node]) for node in kept[1:])]


def after(values: np.ndarray, skip: np.ndarray, position: int, size: int) -> float:
    """Return the largest value of `size` nodes, by trying both to take and to skip at every position."""
    if size == 0:
        return 0.0
    if position == len(values):
        return -np.inf
    taken = values[position] + after(values, skip, position + 1, size - 1)
    return max(taken, after(values, skip, int(skip[position]), size))
