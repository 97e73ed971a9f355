"""Best-first growth: trees inside one another, levels cut to a width, ties, and which nodes are compared."""

import heapq
import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.solver.oracles import by_enumeration, depth_of, node_value, paths_of, rows_of, same
from tests.solver.tables import NAMED, examples, named, tables
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
from treeopt.solver.best_first import grow, top_n, top_nodes

NON_INCREASING = [name for name, p in NAMED.items() if np.all(np.diff(p, axis=-1) <= 0)]
non_increasing = pytest.mark.parametrize("p", [NAMED[name] for name in NON_INCREASING], ids=NON_INCREASING)


def tree_paths(solution, nodes, depth):
    return set(paths_of(solution.tree(nodes, depth).parents.tolist()))


class TestNested:
    @non_increasing
    def test_every_tree_lies_inside_the_next(self, p):
        solution = solve(AcceptanceTable(p), 20, depth_of(p, 5))
        for depth in range(solution.max_depth + 1):
            trees = [tree_paths(solution, nodes, depth) for nodes in range(1, 21)]
            assert all(small <= large for small, large in pairwise(trees))

    @examples(100)
    @given(tables(max_depth=5, max_branching=5, non_increasing=True))
    def test_every_tree_lies_inside_the_next_on_drawn_tables(self, p):
        """Except for nodes whose values are equal but for rounding."""
        solution = solve(AcceptanceTable(p), 20, depth_of(p, 5))
        assert solution.certificate.method == "best-first"
        rows = rows_of(p, solution.max_depth)
        for depth in range(solution.max_depth + 1):
            for small, large in pairwise(tree_paths(solution, nodes, depth) for nodes in range(1, 21)):
                smallest = min(node_value(path, rows) for path in large)
                assert all(node_value(path, rows) <= smallest * (1 + 1e-12) for path in small - large)

    def test_trees_of_other_rows_do_not(self):
        """The negative control: here the best tree of four nodes gives up a child that the best of three has."""
        solution = solve(AcceptanceTable([0.4, 0.0, 0.6]), 6, 2)
        assert any(not tree_paths(solution, n, 2) <= tree_paths(solution, n + 1, 2) for n in range(1, 6))


class TestGrow:
    @examples(200)
    @given(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30),
        st.integers(1, 35),
    )
    def test_top_n_keeps_the_order_of_ties(self, weights, most):
        expected = sorted(range(len(weights)), key=lambda place: -weights[place])[:most]
        assert top_n(np.array(weights), most).tolist() == expected

    @non_increasing
    def test_order_lists_the_top_nodes_of_the_unlimited_tree(self, p):
        self.check_order(p, 30)

    @examples(100)
    @given(tables(max_depth=4, max_branching=5, non_increasing=True), st.integers(1, 40))
    def test_order_lists_the_top_nodes_on_drawn_tables(self, p, nodes):
        self.check_order(p, nodes)

    def check_order(self, p, nodes):
        """Compare with a heap that knows no levels: it pops the node of the largest value, pushes its child and next sibling."""
        levels = depth_of(p, 4)
        rows = rows_of(p, levels)
        unlimited = np.full(levels, nodes, np.int32)
        array = np.array(rows).reshape(levels, -1, np.shape(p)[-1])
        _, _, reach, _, order, _ = grow(array, nodes, unlimited, unlimited)
        for depth in range(levels + 1):
            result = [float(reach[node]) for node in order[depth] if node >= 0]
            offers, expected = [(-1.0, ())], []
            while offers and len(expected) < nodes and offers[0][0] < 0:
                negative, path = heapq.heappop(offers)
                expected.append(-negative)
                for offer in ((*path, 0), *([(*path[:-1], path[-1] + 1)] if path else [])):
                    if len(offer) <= depth:
                        heapq.heappush(offers, (-node_value(offer, rows), offer))
            np.testing.assert_allclose(result, expected, rtol=1e-12)
            assert result == sorted(result, reverse=True)

    def test_evaluates_few_of_all_nodes(self):
        """Only children whose value is large enough are evaluated, not all 32 of every parent."""
        row = np.array([0.7, *(0.12 / k**1.6 for k in range(1, 32))])
        certificate = solve(AcceptanceTable(row), 512, 16).certificate
        assert 512 <= certificate.compared <= 16 * 512
        assert certificate.ruled_out == 0


limits = st.none() | st.integers(1, 4) | st.just("per depth")


class TestTopNodes:
    """Any table: nodes are sorted by upper bounds, the smallest of which bounds all nodes outside."""

    @named
    def test_no_node_outside_exceeds_the_bound(self, p):
        self.check(p, 12, depth_of(p, 3))

    @examples(100)
    @given(tables(max_depth=4, max_branching=4), st.integers(1, 40))
    def test_no_node_outside_exceeds_the_bound_on_drawn_tables(self, p, nodes):
        self.check(p, nodes, depth_of(p, 4))

    def check(self, p, max_nodes, levels):
        rows, branching = rows_of(p, levels), np.shape(p)[-1]
        result = top_nodes(np.array(rows).reshape(levels, -1, branching), max_nodes)
        path = [()]
        for parent, rank in zip(result.parent[1:].tolist(), result.rank[1:].tolist(), strict=True):
            path.append((*path[parent], rank))
        np.testing.assert_allclose(result.reach, [node_value(item, rows) for item in path], rtol=1e-12)
        assert result.depth.tolist() == [len(item) for item in path]
        assert len(set(path)) == len(path)
        for depth in range(levels + 1):
            listed = {path[node] for node in result.order[depth] if node >= 0}
            assert all(len(item) <= depth for item in listed)
            assert all({item[:-1], (*item[:-1], max(0, item[-1] - 1))} <= listed for item in listed if item)
            every = (item for length in range(depth + 1) for item in product(range(branching), repeat=length))
            most = max((node_value(item, rows) for item in every if item not in listed), default=0.0)
            assert most <= result.bound_outside[depth] * (1 + 1e-12)
            assert len(listed) == max_nodes or result.bound_outside[depth] == 0.0


class TestWidthLimits:
    @examples(250)
    @given(tables(max_depth=6, max_branching=4, max_ranks=1, non_increasing=True), limits, limits, st.data())
    def test_equals_every_tree_enumerated(self, p, level_widths, draft_widths, data):
        self.check(p, 9, depth_of(p, 6), level_widths, draft_widths, data)

    def check(self, p, max_nodes, depth, level_widths, draft_widths, data):
        per_depth = st.lists(st.integers(1, 5), min_size=depth, max_size=depth)
        wide = data.draw(per_depth) if level_widths == "per depth" else level_widths
        inner = data.draw(per_depth) if draft_widths == "per depth" else draft_widths
        solution = solve(AcceptanceTable(p), max_nodes, depth, level_widths=wide, draft_widths=inner)
        assert solution.certificate.method == "best-first"
        limits = [None if item is None else np.broadcast_to(item, depth) for item in (wide, inner)]
        same(solution.expected_tokens, by_enumeration(p, max_nodes, depth, *limits))
        self.check_trees(solution, p, *limits)

    def check_trees(self, solution, p, wide, inner):
        for depth in range(solution.max_depth + 1):
            for nodes in range(1, solution.max_nodes + 1):
                tree = solution.tree(nodes, depth)
                assert tree.nodes <= nodes
                assert tree.max_depth <= depth
                assert wide is None or np.all(tree.level_widths[1:] <= wide[: tree.max_depth])
                assert inner is None or np.all(tree.draft_widths <= inner[: tree.max_depth])
                tokens = math.fsum(node_value(path, rows_of(p, depth)) for path in paths_of(tree.parents.tolist()))
                assert tokens == pytest.approx(solution.expected_tokens[depth, nodes], rel=1e-12, abs=0)

    def test_limits_cost_something(self):
        """The negative control: without its limits the enumeration finds better trees than the limited solver."""
        p = NAMED["non-increasing"]
        for limit in ({"level_widths": 2}, {"draft_widths": 1}):
            result = solve(AcceptanceTable(p), 9, 5, **limit).expected_tokens
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                same(result, by_enumeration(p, 9, 5))

    def test_limits_that_no_tree_reaches_change_nothing(self):
        free = solve(AcceptanceTable([0.6, 0.2, 0.1]), 60, 6)
        wide = solve(AcceptanceTable([0.6, 0.2, 0.1]), 60, 6, level_widths=60, draft_widths=[1, *[10**9] * 5])
        assert wide.expected_tokens.tolist() == free.expected_tokens.tolist()
        assert all(wide.tree(60, depth) == free.tree(60, depth) for depth in range(7))

    def test_one_internal_node_per_level_is_a_comb(self):
        solution = solve(AcceptanceTable([0.6, 0.2]), 9, 3, draft_widths=1)
        assert solution.tree(9, 3).parents.tolist() == [-1, 0, 0, 1, 1, 3, 3]

    def test_draft_widths_are_those_of_the_limited_trees(self):
        solution = solve(
            AcceptanceTable([0.4, 0.3, 0.2]), 40, 5, level_widths=[3, 4, 6, 2, 8], draft_widths=[1, 2, 3, 1, 2]
        )
        for depth in range(6):
            for nodes in range(1, 41):
                tree = solution.tree(nodes, depth)
                widths = solution.draft_widths(tree.max_depth)[tree.nodes].tolist()
                assert widths == [*tree.draft_widths.tolist(), *[0] * (5 - tree.max_depth)]

    @pytest.mark.parametrize("name", ["level_widths", "draft_widths"])
    @pytest.mark.parametrize("limit", [0, 1.5, True, [1, 2], [1, 0, 2], [[1, 2, 3]], []], ids=str)
    def test_invalid_limits_raise(self, name, limit):
        with pytest.raises(InvalidValueError, match=f"{name}: expected a whole number of at least 1, or 3 of them"):
            solve(AcceptanceTable([0.5, 0.2]), 8, 3, **{name: limit})


NOT_MONOTONE = {name: p for name, p in NAMED.items() if np.ndim(p) < 3 and np.any(np.diff(np.array(p)) > 0)}


@pytest.mark.parametrize("name", NOT_MONOTONE)
@pytest.mark.parametrize("limits", [{"level_widths": 2}, {"draft_widths": 1}])
def test_limits_on_rows_that_are_not_monotone_raise(name, limits):
    with pytest.raises(InvalidValueError, match="expected none where a higher rank is accepted more often") as refused:
        solve(AcceptanceTable(NOT_MONOTONE[name]), 6, depth_of(NOT_MONOTONE[name], 3), **limits)
    assert refused.value.field == next(iter(limits))


def test_limits_on_parent_ranks_raise():
    table = AcceptanceTable(NAMED["worse below a later child"])
    with pytest.raises(InvalidValueError, match="level_widths: expected none where acceptance depends on the parent"):
        solve(table, 6, 2, level_widths=2)
    assert solve(table, 6, 2).expected_tokens[-1, -1] > 1
