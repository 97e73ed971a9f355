"""What `solve` gives: values and trees of every budget and depth, sizes and widths told of them, and errors."""

import math
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given

from tests.solver.oracles import depth_of, node_value, paths_of, rows_of, same
from tests.solver.tables import NAMED, examples, named, tables
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
from treeopt.solver.solution import MAX_CELLS, TOLERANCE, first_of_equals


def node_values(tree, p):
    rows = rows_of(p, tree.max_depth)
    return [node_value(path, rows) for path in paths_of(tree.parents.tolist())]


class TestValues:
    @named
    def test_shape_and_edges(self, p):
        depth = depth_of(p, 4)
        solution = solve(AcceptanceTable(p), 6, depth)
        values = solution.expected_tokens
        assert values.shape == solution.tree_nodes.shape == solution.tree_depth.shape == (depth + 1, 7)
        assert (values.dtype, solution.tree_nodes.dtype, solution.tree_depth.dtype) == (np.float64, np.int32, np.int32)
        assert not any(array.flags.writeable for array in (values, solution.tree_nodes, solution.tree_depth))
        assert values[:, 0].tolist() == [0.0] * (depth + 1)
        assert values[0].tolist() == [0, 1, 1, 1, 1, 1, 1]
        assert values[:, 1].tolist() == [1.0] * (depth + 1)

    def test_default_sizes(self):
        assert (solution := solve(AcceptanceTable([0.5]))).max_nodes == 512
        assert solution.max_depth == 32
        assert solve(AcceptanceTable([[0.5], [0.5], [0.5]]), 4).max_depth == 3
        assert solve(AcceptanceTable([[[0.5], [0.4]]] * 3), 4).max_depth == 3
        for p in ([[0.5, 0.1]] * 3, [[0.1, 0.5]] * 3):
            assert solve(AcceptanceTable(p), 4, 0).expected_tokens.tolist() == [[0, 1, 1, 1, 1]]
            assert solve(AcceptanceTable(p), 1, 3).expected_tokens.tolist() == [[0, 1]] * 4


class TestTrees:
    @named
    def test_trees_attain_their_values_without_wasted_nodes(self, p):
        self.check(p, 14, depth_of(p, 4))

    @examples(60)
    @given(tables(max_depth=4, max_branching=5))
    def test_trees_of_drawn_tables_attain_their_values_without_wasted_nodes(self, p):
        self.check(p, 12, depth_of(p, 4))

    def check(self, p, max_nodes, max_depth):
        """Check all trees; a node that is never accepted stands only before a sibling that is, and has no children."""
        solution = solve(AcceptanceTable(p), max_nodes, max_depth)
        widths, expected = solution.draft_widths(max_depth), solution.expected_tokens
        assert (widths.dtype, widths.shape) == (np.int32, (max_nodes + 1, max_depth))
        assert not widths[0].any()
        for depth, nodes in product(range(max_depth + 1), range(1, max_nodes + 1)):
            tree = solution.tree(nodes, depth)
            reach = node_values(tree, p)
            assert tree.nodes <= nodes
            assert tree.max_depth <= depth
            tokens = math.fsum(reach)
            assert tokens == pytest.approx(expected[depth, nodes], rel=1e-12, abs=0)
            assert tokens == pytest.approx(expected[tree.max_depth, tree.nodes], rel=1e-12, abs=0)
            assert tokens == pytest.approx(solution.table.expected_tokens(tree), rel=1e-12, abs=0)
            assert solution.tree(tree.nodes, tree.max_depth) == tree
            assert (solution.tree_nodes[depth, nodes], solution.tree_depth[depth, nodes]) == (
                tree.nodes,
                tree.max_depth,
            )
            widths = solution.draft_widths(tree.max_depth)[tree.nodes].tolist()
            assert widths == [*tree.draft_widths.tolist(), *[0] * (max_depth - tree.max_depth)]
            for node in (node for node in range(tree.nodes) if reach[node] == 0):
                assert len(tree.children(node)) == 0
                assert any(reach[sibling] > 0 for sibling in tree.children(tree.parents[node]) if sibling > node)

    @pytest.mark.parametrize(
        ("p", "nodes", "depth", "parents"),
        [
            ([0.0, 1.0], 7, 3, [-1, 0, 0, 2, 2, 4, 4]),  # a node never accepted stands only before one that is
            ([0.0, 0.0], 7, 3, [-1]),
            ([0.5, 0.0, 0.0], 9, 2, [-1, 0, 1]),
            ([[0.0, 0.9]], 2, 1, [-1]),
            ([0.5, 0.5], 3, 2, [-1, 0, 0]),
            ([0.5, 0.5], 5, 2, [-1, 0, 0, 1, 1]),  # of equal nodes those below the lower rank
            ([[0.5, 0.125], [0.5, 0.25]], 4, 2, [-1, 0, 0, 1]),  # of equal nodes the one nearer to the root
            ([1.0], 9, 3, [-1, 0, 1, 2]),
            ([[[0.5, 0.5], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], 4, 2, [-1, 0, 0, 2]),
        ],
        ids=str,
    )
    def test_by_hand(self, p, nodes, depth, parents):
        assert solve(AcceptanceTable(p), nodes, depth).tree(nodes, depth).parents.tolist() == parents

    @pytest.mark.parametrize("p", [[1e-14], [1e-14, 2e-14], [1e-300, 1e-14]], ids=str)
    def test_nodes_that_bring_no_more_than_rounding_are_left_out(self, p):
        assert solve(AcceptanceTable(p), 5, 4).tree(5, 4).nodes == 1
        assert solve(AcceptanceTable([100 * accepted for accepted in p]), 5, 4).tree(5, 4).nodes > 1

    def test_trees_too_large_for_recursion(self):
        chain = solve(AcceptanceTable([1.0]), 1500, 1499).tree(1500, 1499)
        assert (chain.nodes, chain.max_depth) == (1500, 1499)
        bushy = solve(AcceptanceTable([0.2, 0.3, 0.1]), 200, 150)
        same(math.fsum(node_values(bushy.tree(200, 150), [0.2, 0.3, 0.1])), bushy.expected_tokens[150, 200])


class TestAcceptanceProcess:
    NAMES = ("increasing", "a spike worth a detour", "per depth", "three ranks of the parent")

    @pytest.mark.parametrize("name", NAMES)
    def test_expected_tokens_are_those_of_the_process(self, name):
        p, steps, rng = NAMED[name], 6_000, random.Random(f"seed 1 {name}")
        depth = depth_of(p, 4)
        solution = solve(AcceptanceTable(p), 20, depth)
        tree = set(paths_of(solution.tree(20, depth).parents.tolist()))
        tokens = np.array([self.simulate_step(rng, tree, rows_of(p, depth)) for _ in range(steps)])
        error = tokens.std() / math.sqrt(steps)
        assert abs(tokens.mean() - solution.expected_tokens[depth, 20]) <= 4 * error + 1e-12

    def test_another_table_fails_the_process(self):
        """The negative control: the ranks of the parents ignored, the simulated mean is many errors away."""
        p, steps, rng = NAMED["worse below a later child"], 20_000, random.Random("seed 1")
        solution = solve(AcceptanceTable([row[0] for row in p]), 20, 4)
        tree = set(paths_of(solution.tree(20, 4).parents.tolist()))
        tokens = np.array([self.simulate_step(rng, tree, rows_of(p, 4)) for _ in range(steps)])
        assert abs(tokens.mean() - solution.expected_tokens[4, 20]) > 8 * tokens.std() / math.sqrt(steps)

    def simulate_step(self, rng, tree, rows):
        """Draw at every node which rank is accepted, if any, until there is none or no such child; count the tokens."""
        path = ()
        for level in rows:
            accepted = level[min(path[-1] if path else 0, len(level) - 1)]
            drawn = rng.choices([*range(len(accepted)), -1], [*accepted, max(0.0, 1 - sum(accepted))])[0]
            if (*path, drawn) not in tree:
                break
            path = (*path, drawn)
        return 1 + len(path)


class TestErrors:
    @pytest.mark.parametrize("nodes", [0, -1])
    def test_no_room_for_the_root(self, nodes):
        with pytest.raises(InvalidValueError, match=f"max_nodes: expected 1 to .* Got {nodes}"):
            solve(AcceptanceTable([0.5]), nodes)

    def test_negative_depth(self):
        with pytest.raises(InvalidValueError, match=r"max_depth: expected 0 to .* Got -1"):
            solve(AcceptanceTable([0.5]), 4, -1)

    @pytest.mark.parametrize(
        ("p", "nodes", "depth"),
        [
            ([0.5], MAX_CELLS, 1),
            ([0.5], 2, MAX_CELLS // 2),
            ([0.001] * 1000, 2, MAX_CELLS),
            ([0.001] * 1000, 2, 61_000),  # the rows alone are as many
            ([0.1, 0.5], 2, 10_000),  # the dynamic program keeps every depth under every limit
            ([0.1, 0.5], 60_000, 50),
            ([[[0.1, 0.5]] * 40] * 50, 1_200, 50),  # and every rank of the parent
        ],
        ids=["nodes", "depth", "depth of a wide table", "rows", "depths squared", "nodes x depths squared", "ranks"],
    )
    def test_too_many_cells(self, p, nodes, depth):
        """The refusal comes before the memory: the third of these would repeat a row 60 million times."""
        with pytest.raises(InvalidValueError, match=f"max_nodes, max_depth: .* needs more than {MAX_CELLS} values"):
            solve(AcceptanceTable(p), nodes, depth)

    @pytest.mark.parametrize(("nodes", "depth"), [(0, 1), (5, 1), (4, -1), (4, 3)])
    def test_a_tree_that_was_not_solved(self, nodes, depth):
        with pytest.raises(InvalidValueError, match="nodes: expected 1 to 4" if depth == 1 else "depth: expected 0 to"):
            solve(AcceptanceTable([0.5]), 4, 2).tree(nodes, depth)


class TestFirstAsGood:
    @pytest.mark.parametrize("seed", range(5))
    def test_is_what_walking_along_each_row_finds(self, seed):
        """Steps of all sizes, among them many too small to be worth it one by one, which add up."""
        rng = np.random.default_rng(seed)
        steps = rng.choice([0.0, 0.3 * TOLERANCE, 0.9 * TOLERANCE, 1.1 * TOLERANCE, 1e-6, 0.5], (4, 60))
        values = np.cumprod(np.concatenate([rng.choice([0.0, 1.0, 3.0], (4, 1)), 1 + steps], axis=1), axis=1)
        assert first_of_equals(values).tolist() == [self.walked(row) for row in values]

    def walked(self, row):
        best, first = 0, []
        for place, value in enumerate(row):
            if value > row[best] * (1 + TOLERANCE):
                best = place
            first.append(best)
        return first

    def test_negative_control(self):
        """Comparing neighbours alone would miss steps that add up."""
        values = np.cumprod(np.full((1, 9), 1 + 0.9 * TOLERANCE), axis=1)
        assert not np.any(values[:, 1:] > values[:, :-1] * (1 + TOLERANCE))
        assert len(set(first_of_equals(values)[0].tolist())) > 1
