"""The knapsack over a preorder: against every set of nodes that is a tree, with weights of either sign."""

import functools
import itertools

import numpy as np
import pytest

from treeopt.solver.explicit import ExplicitTrees, heaviest_of_any_size, most_weight, preorder

SIZES = pytest.mark.parametrize("nodes", [1, 2, 5, 9, 12])


@functools.cache
def drawn_parents(nodes: int, seed: int) -> tuple[int, ...]:
    """Return a random tree, parents before their children; deep for some seeds, wide for others."""
    rng = np.random.default_rng(seed)
    reach = (nodes, 3, 1)[seed % 3]
    return (-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, nodes)))


def drawn_weights(nodes: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weight = rng.uniform(-1, 1, nodes)
    return np.round(weight, 1) if seed % 2 else weight  # ties and zeros


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


def heaviest(parents: tuple[int, ...], weight: np.ndarray, max_nodes: int) -> list[float]:
    """Return the most that a tree of 0, 1, … nodes weighs; no nodes weigh 0, and what is impossible minus infinity."""
    best = [0.0] + [-np.inf] * max_nodes
    for chosen in every_tree(parents):
        if len(chosen) <= max_nodes:
            best[len(chosen)] = max(best[len(chosen)], sum(weight[node] for node in chosen))
    return best


def int32(values: object) -> np.ndarray:
    return np.array(values, np.int32)


class TestPreorder:
    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_every_node_comes_before_its_children_in_rank_order(self, nodes, seed):
        parents = drawn_parents(nodes, seed)
        assert preorder(int32(parents))[0].tolist() == walk(parents)

    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_leaving_a_node_out_loses_all_below_it_and_its_later_siblings(self, nodes, seed):
        parents = drawn_parents(nodes, seed)
        order, skip = preorder(int32(parents))
        for place, node in enumerate(order.tolist()):
            siblings = [s for s in children(parents, parents[node]) if s >= node] if node else [0]
            lost = {below for sibling in siblings for below in walk(parents, sibling)}
            assert set(order[place : skip[place]].tolist()) == lost

    @SIZES
    @pytest.mark.parametrize("seed", range(6))
    def test_some_nodes_of_a_tree_keep_their_order(self, nodes, seed):
        """The places that are kept are those of the smaller tree by itself."""
        parents, places = drawn_parents(nodes, seed), preorder(int32(drawn_parents(nodes, seed)))
        for chosen in every_tree(parents):
            kept = np.isin(places.node, list(chosen))
            alone, some = preorder(int32(renumbered(parents, chosen))), places.only(kept)
            assert some.skip.tolist() == alone.skip.tolist()
            assert some.node.tolist() == [sorted(chosen)[node] for node in alone.node]


class TestHeaviestOfAnySize:
    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_against_every_tree(self, nodes, seed):
        """In a tie the fewest nodes; weights are whole numbers, so that there are ties."""
        parents = drawn_parents(nodes, seed)
        places, weight = preorder(int32(parents)), np.random.default_rng(seed).integers(-3, 4, nodes)
        total, chosen = heaviest_of_any_size(weight[places.node].tolist(), places.skip.tolist())
        weights = {frozenset(tree): sum(weight[node] for node in tree) for tree in every_tree(parents)}
        tree = frozenset(places.node[chosen].tolist())
        assert total == weights[tree] == max(weights.values())
        assert len(tree) == min(len(each) for each, weighs in weights.items() if weighs == total)


def solve_explicit(parents, weight, max_nodes):
    """Return the best tree of exactly n nodes for every n up to `max_nodes`, as prices do, all nodes kept."""
    places = preorder(parents)
    return ExplicitTrees(parents, places, most_weight(weight[places.node], places.skip, max_nodes))


class TestSolveExplicit:
    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_against_every_tree(self, nodes, seed):
        parents, weight = drawn_parents(nodes, seed), drawn_weights(nodes, seed)
        for most in {1, nodes // 2 + 1, nodes, nodes + 2}:
            found = solve_explicit(int32(parents), weight, most)
            np.testing.assert_allclose(found.weights, heaviest(parents, weight, most), rtol=0, atol=1e-12)

    @SIZES
    @pytest.mark.parametrize("seed", range(12))
    def test_trees_weigh_what_they_should(self, nodes, seed):
        """A tree is given by its parents; among the trees of the catalogue that look so, one weighs as much."""
        parents, weight = drawn_parents(nodes, seed), drawn_weights(nodes, seed)
        found = solve_explicit(int32(parents), weight, nodes)
        for size in range(1, nodes + 1):
            shape = found.parents(size)
            alike = [chosen for chosen in every_tree(parents) if renumbered(parents, chosen) == shape]
            weights = [sum(weight[node] for node in chosen) for chosen in alike]
            assert any(abs(each - found.weights[size]) < 1e-12 for each in weights)

    @pytest.mark.parametrize("seed", range(12))
    def test_from_every_place_on(self, seed):
        """Entry [i, n] is the most that n of the nodes from place i on weigh, had all before it been left out."""
        nodes, parents, weight = 8, drawn_parents(8, seed), drawn_weights(8, seed)
        order, skip = preorder(int32(parents))
        best = most_weight(weight[order], skip, nodes)
        for place in range(nodes + 1):
            for size in range(nodes + 1):
                assert best[place, size] == pytest.approx(after(weight[order], skip, place, size), abs=1e-12)

    def test_a_light_node_is_passed_through_where_a_heavy_one_hangs_below(self):
        """Root, two children; below the first, which weighs -1, one of 5."""
        found = solve_explicit(int32([-1, 0, 0, 1]), np.array([1.0, -1.0, 0.5, 5.0]), 4)
        assert found.weights.tolist() == [0, 1, 0, 5, 5.5]
        assert found.parents(3) == [-1, 0, 1]
        assert found.parents(4) == [-1, 0, 0, 1]

    def test_greed_is_not_enough(self):
        """What each node adds by itself leads astray in many of the drawn trees."""
        astray = 0
        for seed in range(30):
            parents, weight = drawn_parents(9, seed), drawn_weights(9, seed)
            chosen, greedy = {0}, [weight[0]]
            while len(chosen) < 9:
                offers = [n for n in range(9) if n not in chosen and is_tree(parents, chosen | {n})]
                chosen.add(max(offers, key=lambda node: weight[node]))
                greedy.append(sum(weight[node] for node in chosen))
            astray += np.any(solve_explicit(int32(parents), weight, 9).weights[1:] > np.array(greedy) + 1e-9)
        assert astray > 10


def renumbered(parents: tuple[int, ...], chosen: set[int]) -> list[int]:
    kept = sorted(chosen)
    return [-1, *(kept.index(parents[node]) for node in kept[1:])]


def after(weight: np.ndarray, skip: np.ndarray, place: int, size: int) -> float:
    """Return the most that `size` nodes weigh, by trying both to take and to leave at every place."""
    if size == 0:
        return 0.0
    if place == len(weight):
        return -np.inf
    taken = weight[place] + after(weight, skip, place + 1, size - 1)
    return max(taken, after(weight, skip, int(skip[place]), size))
