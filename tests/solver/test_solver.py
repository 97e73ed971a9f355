"""The solver against independent ones: every tree enumerated, another dynamic program, the process simulated.

The oracles at the top share no code with treeopt; a greedy solver that is wrong shows that they notice.
"""

import functools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from treeopt.acceptance import AcceptanceTable
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.solver import kernels, solve
from treeopt.solver.solution import MAX_CELLS

SEQUOIA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sequoia" / "acceptance.json"

NAMED = {
    "one child that is always accepted": [1.0],
    "a single branch": [0.6],
    "a single branch per depth": [[0.9], [0.1], [0.5]],
    "falling": [0.6, 0.2, 0.1],
    "rising": [0.1, 0.2, 0.6],
    "only the second": [0.0, 1.0],
    "never": [0.0, 0.0],
    "never after the first level": [[0.5, 0.4], [0.0, 0.0], [0.7, 0.2]],
    "zeros inside": [0.5, 0.0, 0.3, 0.0],
    "one spike deep in the row": [0.0, 0.0, 0.0, 1.0],
    "a spike worth a detour": [[0.3, 0.0, 0.7], [0.9, 0.1, 0.0], [0.0, 0.2, 0.8]],
    "tiny": [1e-300, 1e-300],
    "tiny beside large": [[0.5, 1e-300], [1e-300, 0.5], [0.5, 0.5]],
    "smallest float": [5e-324, 0.5],
    "sum of exactly 1": [0.5, 0.25, 0.25],
    "equal": [0.25, 0.25, 0.25, 0.25],
    "per depth": [[0.8, 0.1], [0.3, 0.3], [0.1, 0.6], [0.5, 0.4], [1.0, 0.0]],
}
named = pytest.mark.parametrize("p", NAMED.values(), ids=NAMED)
thorough = settings(deadline=None, derandomize=True, max_examples=400)
quick = settings(deadline=None, derandomize=True, max_examples=40)

Table = list[float] | list[list[float]]
Tree = tuple["Tree", ...]
"""A tree is the trees of its root's children, in rank order."""


@functools.cache
def every_tree(nodes: int) -> tuple[Tree, ...]:
    return every_forest(nodes - 1)


@functools.cache
def every_forest(nodes: int) -> tuple[tuple[Tree, ...], ...]:
    if nodes == 0:
        return ((),)
    return tuple(
        (first, *others)
        for size in range(1, nodes + 1)
        for first in every_tree(size)
        for others in every_forest(nodes - size)
    )


def paths(tree: Tree, path: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield for every node the (row, rank) pairs on the way to it."""
    yield path
    for rank, child in enumerate(tree):
        yield from paths(child, (*path, (len(path), rank)))


@functools.cache
def every_tree_up_to(nodes: int) -> list[tuple[tuple[tuple[int, int], ...], ...]]:
    return [tuple(paths(tree)) for size in range(1, nodes + 1) for tree in every_tree(size)]


def rows_of(p: Table, depth: int) -> list[list[float]]:
    return [p] * depth if isinstance(p[0], float) else p[:depth]


def by_enumeration(p: Table, max_nodes: int, max_depth: int) -> np.ndarray:
    """Return the most expected tokens for every (depth, budget), from every tree there is."""
    rows = rows_of(p, max_depth)
    branching = len(rows[0])
    best = np.zeros((max_depth + 1, max_nodes + 1))
    for tree in every_tree_up_to(max_nodes):
        depth = max(map(len, tree))
        if depth <= max_depth and all(rank < branching for path in tree for _, rank in path):
            tokens = math.fsum(math.prod(rows[row][rank] for row, rank in path) for path in tree)
            best[depth:, len(tree) :] = np.maximum(best[depth:, len(tree) :], tokens)
    return best


def by_exact_sizes(p: Table, max_nodes: int, max_depth: int) -> np.ndarray:
    """Return the same from the best forests of exactly n nodes: first child, what hangs below it, its later siblings."""
    rows = rows_of(p, max_depth)
    best = np.zeros((max_depth + 1, max_nodes + 1))
    for limit in range(max_depth + 1):
        nothing = [0.0] + [None] * max_nodes
        below = nothing
        for row in reversed(rows[:limit]):
            later = nothing
            for accepted in reversed(row):
                forest = list(nothing)
                for n in range(1, max_nodes + 1):
                    splits = [(below[m], later[n - 1 - m]) for m in range(n)]
                    sums = [accepted * (1 + a) + b for a, b in splits if a is not None and b is not None]
                    forest[n] = max(sums, default=None)
                later = forest
            below = later
        exact = [0.0] + [-1.0 if forest is None else 1 + forest for forest in below[:max_nodes]]
        best[limit] = np.maximum.accumulate(exact)
    return best


def by_greed(p: Table, max_nodes: int, max_depth: int) -> np.ndarray:
    """Return what the likeliest next node, taken again and again, comes to: wrong where a later rank is likelier."""
    rows = rows_of(p, max_depth)
    result = np.zeros((max_depth + 1, max_nodes + 1))
    for limit in range(max_depth + 1):
        offers = [(1.0, -1, -1, 1.0)]  # reach, depth, rank, reach of the parent
        tokens = 0.0
        for n in range(1, max_nodes + 1):
            if offers:
                offers.sort()
                reach, depth, rank, parent = offers.pop()
                tokens += reach
                if depth >= 0 and rank + 1 < len(rows[0]):
                    offers.append((parent * rows[depth][rank + 1], depth, rank + 1, parent))
                if depth + 1 < limit:
                    offers.append((reach * rows[depth + 1][0], depth + 1, 0, reach))
            result[limit, n] = tokens
    return result


def reach(parents: list[int], p: Table) -> list[float]:
    """Return the probability that each node is accepted, every path multiplied out from the root."""
    rows = rows_of(p, len(parents))
    result = []
    for node in range(len(parents)):
        steps = []
        while parents[node] >= 0:
            steps.append(node - parents.index(parents[node]))
            node = parents[node]
        result.append(math.prod(rows[row][rank] for row, rank in enumerate(reversed(steps))))
    return result


def same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)


@st.composite
def row(draw: st.DrawFn, branching: int) -> list[float]:
    entry = st.sampled_from([0.0, 0.0, 1e-300, 1e-9, 0.5, 1.0]) | st.floats(0, 1)
    weights = draw(st.lists(entry, min_size=branching, max_size=branching))
    kind = draw(st.sampled_from(["any", "falling", "rising", "spike"]))
    if kind in ("falling", "rising"):
        weights.sort(reverse=kind == "falling")
    if kind == "spike":
        weights = [0.0] * (branching - 1) + weights[:1]
    total = sum(weights)
    fill = total > 0 and draw(st.booleans())
    return [weight / total for weight in weights] if fill or total > 1 else weights


@st.composite
def tables(draw: st.DrawFn, max_depth: int, max_branching: int) -> Table:
    branching = draw(st.integers(1, max_branching))
    if draw(st.booleans()):
        return draw(row(branching))
    depth = draw(st.integers(1, max_depth))
    return draw(st.lists(row(branching), min_size=depth, max_size=depth))


def depth_of(p: Table, default: int) -> int:
    return default if isinstance(p[0], float) else len(p)


class TestOptimum:
    @named
    def test_equals_every_tree_enumerated(self, p):
        depth = depth_of(p, 7)
        same(solve(AcceptanceTable(p), 8, depth).expected_tokens, by_enumeration(p, 8, depth))

    @thorough
    @given(tables(max_depth=7, max_branching=7))
    def test_equals_every_tree_enumerated_on_random_tables(self, p):
        depth = depth_of(p, 7)
        same(solve(AcceptanceTable(p), 8, depth).expected_tokens, by_enumeration(p, 8, depth))

    @named
    def test_equals_another_dynamic_program(self, p):
        depth = depth_of(p, 5)
        same(solve(AcceptanceTable(p), 24, depth).expected_tokens, by_exact_sizes(p, 24, depth))

    @quick
    @given(tables(max_depth=5, max_branching=5))
    def test_equals_another_dynamic_program_on_random_tables(self, p):
        depth = depth_of(p, 5)
        same(solve(AcceptanceTable(p), 24, depth).expected_tokens, by_exact_sizes(p, 24, depth))

    def test_there_are_as_many_trees_as_catalan_counted(self):
        assert [len(every_tree(n)) for n in range(1, 9)] == [1, 1, 2, 5, 14, 42, 132, 429]
        assert len(set(every_tree_up_to(8))) == 626

    def test_a_greedy_solver_is_noticed(self):
        """The negative control: greed is right on falling rows only, and the enumeration tells the two apart."""
        same(by_greed(NAMED["falling"], 8, 7), by_enumeration(NAMED["falling"], 8, 7))
        for name in ("zeros inside", "one spike deep in the row", "a spike worth a detour", "per depth"):
            depth = depth_of(NAMED[name], 7)
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                same(by_greed(NAMED[name], 8, depth), by_enumeration(NAMED[name], 8, depth))


class TestValues:
    @named
    def test_shape_and_edges(self, p):
        depth = depth_of(p, 4)
        values = solve(AcceptanceTable(p), 6, depth).expected_tokens
        assert values.shape == (depth + 1, 7)
        assert values.dtype == np.float64
        assert not values.flags.writeable
        assert values[:, 0].tolist() == [0.0] * (depth + 1)
        assert values[0].tolist() == [0, 1, 1, 1, 1, 1, 1]
        assert values[:, 1].tolist() == [1.0] * (depth + 1)

    @quick
    @given(tables(max_depth=6, max_branching=6))
    def test_more_nodes_and_more_levels_never_hurt(self, p):
        values = solve(AcceptanceTable(p), 20, depth_of(p, 6)).expected_tokens
        assert np.all(np.diff(values, axis=0) >= 0)
        assert np.all(np.diff(values, axis=1) >= 0)

    @quick
    @given(tables(max_depth=4, max_branching=5), st.data())
    def test_more_acceptance_never_hurts(self, p, data):
        better = np.array(p)
        entry = tuple(data.draw(st.integers(0, size - 1)) for size in better.shape)
        room = 1.0 - better[entry[:-1]].sum()
        assume(room > 0)
        better[entry] += data.draw(st.floats(0, 1)) * room
        depth = depth_of(p, 5)
        before, after = (solve(AcceptanceTable(table), 16, depth).expected_tokens for table in (p, better))
        assert np.all(after >= before)

    def test_a_row_for_every_depth_is_that_row_repeated(self):
        p = [0.3, 0.0, 0.5, 0.1]
        once, repeated = solve(AcceptanceTable(p), 40, 6), solve(AcceptanceTable([p] * 6), 40, 6)
        assert once.expected_tokens.tolist() == repeated.expected_tokens.tolist()
        for depth in range(7):
            assert once.tree(40, depth) == repeated.tree(40, depth)

    def test_default_sizes(self):
        assert (solution := solve(AcceptanceTable([0.5]))).max_nodes == 512
        assert solution.max_depth == 32
        assert solve(AcceptanceTable([[0.5], [0.5], [0.5]]), 4).max_depth == 3
        assert solve(AcceptanceTable([[0.5], [0.5], [0.5]]), 4, 0).expected_tokens.tolist() == [[0, 1, 1, 1, 1]]


def every_solved_tree(p: Table, max_nodes: int, max_depth: int):
    solution = solve(AcceptanceTable(p), max_nodes, max_depth)
    for depth in range(max_depth + 1):
        for nodes in range(1, max_nodes + 1):
            yield solution, depth, nodes, solution.tree(nodes, depth)


class TestTrees:
    @named
    def test_every_tree_attains_its_value_within_its_budget_and_depth(self, p):
        self.check_attained(p, 24, depth_of(p, 5))

    @quick
    @given(tables(max_depth=4, max_branching=5))
    def test_every_tree_attains_its_value_on_random_tables(self, p):
        self.check_attained(p, 16, depth_of(p, 4))

    def check_attained(self, p, max_nodes, max_depth):
        for solution, depth, nodes, tree in every_solved_tree(p, max_nodes, max_depth):
            assert tree.nodes <= nodes
            assert tree.max_depth <= depth
            tokens = math.fsum(reach(tree.parents.tolist(), p))
            assert tokens == pytest.approx(solution.expected_tokens[depth, nodes], rel=1e-12, abs=0)
            assert solution.table.expected_tokens(tree) == pytest.approx(tokens, rel=1e-12, abs=0)

    @named
    def test_no_node_is_wasted(self, p):
        self.check_not_wasted(p, 12, depth_of(p, 4))

    @quick
    @given(tables(max_depth=4, max_branching=5))
    def test_no_node_is_wasted_on_random_tables(self, p):
        self.check_not_wasted(p, 12, depth_of(p, 4))

    def check_not_wasted(self, p, max_nodes, max_depth):
        """Expect a node that is never accepted only before a sibling that is, and without children."""
        for solution, depth, nodes, tree in every_solved_tree(p, max_nodes, max_depth):
            reached = reach(tree.parents.tolist(), p)
            for node in (node for node in range(tree.nodes) if reached[node] == 0):
                assert len(tree.children(node)) == 0
                assert any(reached[sibling] > 0 for sibling in tree.children(tree.parents[node]) if sibling > node)
            assert solution.expected_tokens[depth, tree.nodes] == solution.expected_tokens[depth, nodes]
            assert solution.tree(tree.nodes, tree.max_depth) == tree

    def test_a_node_never_accepted_is_there_only_for_the_ranks_behind_it(self):
        assert solve(AcceptanceTable([0.0, 1.0]), 7, 3).tree(7, 3).parents.tolist() == [-1, 0, 0, 2, 2, 4, 4]
        assert solve(AcceptanceTable([0.0, 0.0]), 7, 3).tree(7, 3).parents.tolist() == [-1]
        assert solve(AcceptanceTable([0.5, 0.0, 0.0]), 9, 2).tree(9, 2).parents.tolist() == [-1, 0, 1]
        assert solve(AcceptanceTable([[0.0, 0.9]]), 2, 1).tree(2, 1).parents.tolist() == [-1]

    @quick
    @given(tables(max_depth=4, max_branching=5))
    def test_the_sizes_and_widths_told_are_those_of_the_trees(self, p):
        for solution, depth, nodes, tree in every_solved_tree(p, 12, depth_of(p, 4)):
            assert solution.tree_nodes[depth, nodes] == tree.nodes
            widths = np.zeros(solution.max_depth, np.int32)
            widths[: tree.max_depth] = tree.draft_widths
            assert solution.draft_widths[depth, nodes].tolist() == widths.tolist()

    @pytest.mark.parametrize("name", ["falling", "rising", "only the second", "a spike worth a detour", "per depth"])
    def test_expected_tokens_are_those_of_the_acceptance_process(self, name):
        p, steps, rng = NAMED[name], 20_000, random.Random(f"seed 1 {name}")
        depth = depth_of(p, 4)
        solution = solve(AcceptanceTable(p), 20, depth)
        children = self.children_of(solution.tree(20, depth).parents.tolist())
        tokens = np.array([self.simulate_step(rng, children, rows_of(p, depth)) for _ in range(steps)])
        error = tokens.std() / math.sqrt(steps)
        assert abs(tokens.mean() - solution.expected_tokens[depth, 20]) <= 4 * error + 1e-12

    def children_of(self, parents):
        children = [[] for _ in parents]
        for node, parent in enumerate(parents[1:], start=1):
            children[parent].append(node)
        return children

    def simulate_step(self, rng, children, rows):
        """Draw at every node which rank is accepted, if any, until there is none or no such child."""
        node, tokens = 0, 1
        for accepted in rows:
            drawn = rng.choices([*range(len(accepted)), len(accepted)], [*accepted, max(0.0, 1 - sum(accepted))])[0]
            if drawn >= len(children[node]):
                break
            node, tokens = children[node][drawn], tokens + 1
        return tokens


ALL_PARENTS = """
import json, sys
from treeopt.acceptance import AcceptanceTable
from treeopt.solver import solve
for p, nodes, depth in json.load(sys.stdin):
    solution = solve(AcceptanceTable(p), nodes, depth)
    print([solution.tree(n, d).parents.tobytes().hex() for d in range(depth + 1) for n in range(1, nodes + 1)])
"""


class TestReproducible:
    @pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "7"}, {"NUMBA_DISABLE_JIT": "1"}], ids=str)
    def test_equal_input_gives_equal_bytes_in_a_fresh_process(self, environment):
        """Ties are everywhere in these tables; the second process runs the kernels as plain Python."""
        asked = [(p, 16, depth_of(p, 4)) for p in NAMED.values()]
        fresh = subprocess.run(
            [sys.executable, "-c", ALL_PARENTS],
            input=json.dumps(asked),
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        here = [[tree.parents.tobytes().hex() for _, _, _, tree in every_solved_tree(*each)] for each in asked]
        assert fresh.splitlines() == list(map(str, here))

    @named
    def test_the_kernels_do_what_their_python_says(self, p, monkeypatch):
        rows = np.array(rows_of(p, depth_of(p, 4)))
        flat = isinstance(p[0], float)

        def outputs():
            values = kernels.values(rows, flat, 12)
            forest = kernels.forests(rows[0], values[1, -2])
            sizes = [kernels.child_sizes(rows[0], values[1, -2], nodes) for nodes in range(12)]
            return [values, forest, *sizes, *kernels.shapes(rows, flat, values)]

        compiled = outputs()
        for name in ("forests", "values", "share_out", "shapes", "child_sizes"):
            kernel = getattr(kernels, name)
            monkeypatch.setattr(kernels, name, getattr(kernel, "py_func", kernel))
        for fast, slow in zip(compiled, outputs(), strict=True):
            assert (fast.dtype, fast.shape, fast.tobytes()) == (slow.dtype, slow.shape, slow.tobytes())


@pytest.mark.skipif(not SEQUOIA.exists(), reason=f"needs {SEQUOIA}, which is not part of the project")
class TestPublishedVectors:
    @pytest.fixture(params=["shipped_vector", "paper_vector"])
    def vector(self, request):
        return json.loads(SEQUOIA.read_text("utf-8"))[request.param]

    def test_its_ends_are_ranks_and_not_the_unused_zero_or_the_rejections(self, vector):
        """As shipped the vector starts with an unused 0 and ends with the probability that no child is accepted."""
        assert vector["p"][0] > 0.5
        assert sum(vector["p"]) + vector.get("none_accepted", 0.0) <= 1 + 1e-6
        with_zero = solve(AcceptanceTable([0.0, *vector["p"]]), 16, 4).expected_tokens
        without = solve(AcceptanceTable(vector["p"]), 16, 4).expected_tokens
        assert with_zero[4, 16] < without[4, 16] - 0.1

    def test_equals_another_dynamic_program(self, vector):
        same(solve(AcceptanceTable(vector["p"]), 20, 3).expected_tokens, by_exact_sizes(vector["p"], 20, 3))

    def test_128_nodes(self, vector):
        solution = solve(AcceptanceTable(vector["p"]), 128, 10)
        values, greedy = solution.expected_tokens, by_greed(vector["p"], 128, 10)
        assert np.all(values >= greedy * (1 - 1e-12))
        np.testing.assert_allclose(values, greedy, rtol=0.02)
        for nodes in (64, 128):
            tree = solution.tree(nodes, 10)
            assert math.fsum(reach(tree.parents.tolist(), vector["p"])) == pytest.approx(values[10, nodes], rel=1e-12)


class TestErrors:
    @pytest.mark.parametrize("nodes", [0, -1])
    def test_no_room_for_the_root(self, nodes):
        with pytest.raises(InvalidValueError, match=f"max_nodes: expected 1 to .* Got {nodes}"):
            solve(AcceptanceTable([0.5]), nodes)

    def test_negative_depth(self):
        with pytest.raises(InvalidValueError, match=r"max_depth: expected 0 to .* Got -1"):
            solve(AcceptanceTable([0.5]), 4, -1)

    def test_deeper_than_the_table(self):
        with pytest.raises(InfeasibleError, match=r"measured to depth 2\. Got 3"):
            solve(AcceptanceTable([[0.5], [0.5]]), 4, 3)

    @pytest.mark.parametrize(("nodes", "depth"), [(MAX_CELLS, 1), (2, 10_000), (2, MAX_CELLS)])
    def test_too_many_cells(self, nodes, depth):
        """The refusal comes before the memory: the last of these would repeat a row 40 million times."""
        with pytest.raises(InvalidValueError, match="needs more than 40000000 values"):
            solve(AcceptanceTable([0.001] * 1000), nodes, depth)

    @pytest.mark.parametrize(("nodes", "depth"), [(0, 1), (5, 1), (4, -1), (4, 3)])
    def test_a_tree_that_was_not_solved(self, nodes, depth):
        with pytest.raises(InvalidValueError, match="nodes: expected 1 to 4" if depth == 1 else "depth: expected 0 to"):
            solve(AcceptanceTable([0.5]), 4, 2).tree(nodes, depth)
