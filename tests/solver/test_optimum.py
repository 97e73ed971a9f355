"""The optimum, against every tree enumerated and against another dynamic program; both methods against each other."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.solver.oracles import (
    Table,
    by_dynamic_program,
    by_enumeration,
    by_greed,
    catalogue,
    depth_of,
    every_tree,
    node_value,
    paths_of,
    rows_of,
    same,
)
from tests.solver.tables import NAMED, examples, named, tables
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import best_first, dynamic_program, solve

SEQUOIA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sequoia" / "acceptance.json"


def values(p: Table, nodes: int, depth: int) -> np.ndarray:
    return solve(AcceptanceTable(p), nodes, depth).expected_tokens


class TestOptimum:
    @named
    def test_equals_every_tree_enumerated(self, p):
        depth = depth_of(p, 7)
        same(values(p, 8, depth), by_enumeration(p, 8, depth))

    @examples(400)
    @given(tables(max_depth=7, max_branching=7))
    def test_equals_every_tree_enumerated_on_drawn_tables(self, p):
        depth = depth_of(p, 7)
        same(values(p, 8, depth), by_enumeration(p, 8, depth))

    @named
    def test_equals_another_dynamic_program(self, p):
        depth = depth_of(p, 5)
        same(values(p, 24, depth), by_dynamic_program(p, 24, depth))

    @examples(80)
    @given(tables(max_depth=5, max_branching=5))
    def test_equals_another_dynamic_program_on_drawn_tables(self, p):
        depth = depth_of(p, 5)
        same(values(p, 24, depth), by_dynamic_program(p, 24, depth))

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    def test_equals_another_dynamic_program_on_large_rough_tables(self, ranks):
        rng = np.random.default_rng([2, ranks])
        p = rng.dirichlet(np.full(8, 0.3), size=(4, ranks)).tolist()
        same(values(p, 48, 4), by_dynamic_program(p, 48, 4))

    def test_there_are_as_many_trees_as_catalan_counted(self):
        assert [len(every_tree(n)) for n in range(1, 10)] == [1, 1, 2, 5, 14, 42, 132, 429, 1430]
        trees = catalogue(8)
        assert len({row.tobytes() for row in trees.holds}) == len(trees.size) == 626
        assert np.array_equal(trees.holds.sum(axis=1), trees.size)

    def test_the_two_oracles_agree_where_parents_ranks_matter(self):
        for name in ("better below a later child", "three ranks of the parent", "never below the first"):
            depth = depth_of(NAMED[name], 4)
            same(by_dynamic_program(NAMED[name], 8, depth), by_enumeration(NAMED[name], 8, depth))
            plain = [depth_row[0] for depth_row in NAMED[name]]
            assert not np.allclose(by_enumeration(plain, 8, depth), by_enumeration(NAMED[name], 8, depth))

    def test_greedy_solver_fails(self):
        """The negative control: greed is right on non-increasing rows only, and the enumeration tells the two apart."""
        for name in (
            "non-increasing",
            "non-increasing per depth",
            "worse below a later child",
            "better below a later child",
        ):
            depth = depth_of(NAMED[name], 7)
            same(by_greed(NAMED[name], 8, depth), by_enumeration(NAMED[name], 8, depth))
        for name in ("zeros inside", "one spike deep in the row", "a spike worth a detour", "per depth"):
            depth = depth_of(NAMED[name], 7)
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                same(by_greed(NAMED[name], 8, depth), by_enumeration(NAMED[name], 8, depth))


class TestBothMethods:
    def solve_both(self, p: Table, nodes: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array(rows_of(p, depth)).reshape(depth, -1, np.shape(p)[-1])
        unlimited = np.full(depth, nodes, np.int32)
        parent, rank, reach, _, order, _ = best_first.grow(rows, nodes, unlimited, unlimited)
        grown = best_first.NestedTrees(parent, rank, reach, order).expected_tokens
        return grown, dynamic_program.solve_values(rows, nodes)[0].expected_tokens

    @examples(200)
    @given(tables(max_depth=6, max_branching=6, non_increasing=True))
    def test_best_first_and_dynamic_program_agree_on_monotone_rows(self, p):
        same(*self.solve_both(p, 60, depth_of(p, 6)))

    def test_best_first_alone_is_wrong_on_other_rows(self):
        for name in ("zeros inside", "a spike worth a detour", "per depth", "three ranks of the parent"):
            with pytest.raises(AssertionError, match="Not equal to tolerance"):
                same(*self.solve_both(NAMED[name], 12, depth_of(NAMED[name], 4)))

    @named
    def test_the_method_follows_from_the_rows(self, p):
        depth = depth_of(p, 4)
        certificate = solve(AcceptanceTable(p), 6, depth).certificate
        non_increasing = all(row == sorted(row, reverse=True) for level in rows_of(p, depth) for row in level)
        assert certificate.method == ("best-first" if non_increasing else "dynamic-program")
        assert certificate.statement
        assert (certificate.ruled_out == 0) or not non_increasing

    def test_the_smallest_increase_is_solved_by_the_other_method(self):
        up = float(np.nextafter(0.25, 1))
        assert solve(AcceptanceTable([0.5, 0.25, 0.25]), 6, 3).certificate.method == "best-first"
        increasing = solve(AcceptanceTable([[[0.5, 0.3, 0.1]], [[0.5, 0.25, up]]]), 6, 2)
        assert increasing.certificate.method == "dynamic-program"


class TestMonotone:
    @examples(60)
    @given(tables(max_depth=6, max_branching=6))
    def test_more_nodes_and_more_levels_never_hurt(self, p):
        result = values(p, 20, depth_of(p, 6))
        assert np.all(np.diff(result, axis=0) >= 0)
        assert np.all(np.diff(result, axis=1) >= 0)

    @examples(60)
    @given(tables(max_depth=4, max_branching=5), st.data())
    def test_more_acceptance_never_hurts(self, p, data):
        better = np.array(p)
        entry = tuple(data.draw(st.integers(0, size - 1)) for size in better.shape)
        room = 1.0 - better[entry[:-1]].sum()
        assume(room > 0)
        better[entry] += data.draw(st.floats(0, 1)) * room
        depth = depth_of(p, 5)
        assert np.all(values(better.tolist(), 16, depth) >= values(p, 16, depth) * (1 - 1e-12))

    def test_a_row_for_every_depth_is_that_row_repeated(self):
        for p in ([0.3, 0.0, 0.5, 0.1], [0.5, 0.3, 0.1]):
            solutions = [solve(AcceptanceTable(form), 40, 6) for form in (p, [p] * 6, [[p]] * 6, [[p, p]] * 6)]
            for other in solutions[1:]:
                same(other.expected_tokens, solutions[0].expected_tokens)
                assert all(other.tree(40, depth) == solutions[0].tree(40, depth) for depth in range(7))


@pytest.mark.source
@pytest.mark.skipif(not SEQUOIA.exists(), reason=f"needs {SEQUOIA}, which is not part of the project")
class TestPublishedVectors:
    @pytest.fixture(params=["shipped_vector", "paper_vector"])
    def vector(self, request):
        return json.loads(SEQUOIA.read_text("utf-8"))[request.param]

    def test_vector_has_no_unused_zero_and_no_rejections(self, vector):
        """As shipped the vector starts with an unused 0 and ends with the probability that no child is accepted."""
        assert vector["p"][0] > 0.5
        assert sum(vector["p"]) + vector.get("none_accepted", 0.0) <= 1 + 1e-6
        assert values([0.0, *vector["p"]], 16, 4)[4, 16] < values(vector["p"], 16, 4)[4, 16] - 0.1

    def test_equals_another_dynamic_program(self, vector):
        same(values(vector["p"], 20, 3), by_dynamic_program(vector["p"], 20, 3))

    def test_128_nodes(self, vector):
        solution = solve(AcceptanceTable(vector["p"]), 128, 10)
        result, greedy = solution.expected_tokens, by_greed(vector["p"], 128, 10)
        assert np.all(result >= greedy * (1 - 1e-12))
        np.testing.assert_allclose(result, greedy, rtol=0.02)
        rows = rows_of(vector["p"], 10)
        for nodes in (64, 128):
            paths = paths_of(solution.tree(nodes, 10).parents.tolist())
            assert math.fsum(node_value(path, rows) for path in paths) == pytest.approx(result[10, nodes], rel=1e-12)
