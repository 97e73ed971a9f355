"""The fastest tree: against every tree of up to 9 nodes, and against every choice of widths of up to 24 nodes."""

import itertools

import numpy as np
import pytest

from tests.solver.oracles import Table
from tests.support.invented_machines import DEPTH, FALLING, MACHINES, NODES, TABLES, Seconds, drawn_seconds, drawn_table
from tests.support.planner_oracles import every_speedup, fastest_of_most_tokens, least_from_here, speedup
from treeopt.arrays import Float64, Int64
from treeopt.planner import Fastest, fastest_tree, speed_bound
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.planner.fastest import _Search, solution_speedups
from treeopt.planner.speed_bound import upper_bound
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve

ROUNDING = 1e-9
KINDS = ("falling", "rising", "ranked")


def costs_of(machine: Seconds) -> StepCosts:
    return StepCosts(
        verify=Curve.of(least_from_here(machine.verify)),
        draft=Curve.of(least_from_here(machine.draft)),
        overhead_s=np.array(max(0.0, machine.overhead)),
    )


def fastest(p: Table, machine: Seconds, nodes: int, depth: int, level_widths: list[int] | None = None) -> Fastest:
    solution = solve(AcceptanceTable(p), nodes, depth, level_widths=level_widths)
    return fastest_tree(solution, costs_of(machine), level_widths=level_widths)


cases = pytest.mark.parametrize(
    ("machine", "table"), [pytest.param(m, t, id=f"{m}, {t}") for m, t in itertools.product(MACHINES, TABLES)]
)


def drawn(kind: str, count: int) -> list[tuple[Table, Seconds, int, int]]:
    """Return random tables and machines, with the most nodes and depth to plan for."""
    made = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        nodes, depth = int(rng.integers(2, NODES + 1)), int(rng.integers(1, DEPTH + 1))
        machine = drawn_seconds(rng, nodes)
        if rng.random() < 0.2:
            machine = machine._replace(draft=machine.draft[: max(1, nodes // 2)])  # wider levels were not measured
        made.append((drawn_table(rng, depth, kind), machine, nodes, depth))
    return made


def broken_bounds(kind: str, count: int) -> list[int]:
    """Return the numbers of the random cases in which a tree is faster than the bound that follows from a random tree."""
    broken = []
    for number, (p, machine, nodes, depth) in enumerate(drawn(kind, count)):
        speedups = every_speedup(p, machine, nodes, depth)
        known = max(1.0, float(np.random.default_rng(number).choice(speedups[speedups > 0])))
        bound = upper_bound(solve(AcceptanceTable(p), nodes, depth), costs_of(machine), known)
        if bound < speedups.max() * (1 - ROUNDING):
            broken.append(number)
    return broken


class TestUpToNineNodes:
    @cases
    def test_no_tree_is_faster(self, machine, table):
        result = fastest(TABLES[table], MACHINES[machine], NODES, DEPTH)
        best = every_speedup(TABLES[table], MACHINES[machine], NODES, DEPTH).max()
        assert result.speedup == pytest.approx(best, rel=1e-12)
        assert result.speedup == pytest.approx(speedup(result.tree.parents.tolist(), TABLES[table], MACHINES[machine]))
        assert result.bound >= best * (1 - ROUNDING)

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_tree_is_faster_on_drawn_machines(self, kind):
        for number, case in enumerate(drawn(kind, 100)):
            assert fastest(*case).speedup == pytest.approx(every_speedup(*case).max(), rel=1e-12), number

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_tree_breaks_the_bound_on_drawn_machines(self, kind):
        assert broken_bounds(kind, 100) == []

    def test_most_trees_are_proven_to_be_the_fastest(self):
        assert np.mean([fastest(*case).loss == 0 for case in drawn("falling", 100)]) > 0.9

    @pytest.mark.parametrize("widest", [1, 2])
    def test_levels_wider_than_timed_are_left_out(self, widest):
        even, machine = [[0.34, 0.33, 0.33]] * 3, MACHINES["nodes almost free"]
        narrow = machine._replace(draft=machine.draft[:widest])
        result = fastest(even, narrow, NODES, 3)
        assert fastest(even, machine, NODES, 3).tree.draft_widths.max() > widest
        assert result.tree.draft_widths.max() == widest
        assert result.speedup == pytest.approx(every_speedup(even, narrow, NODES, 3).max(), rel=1e-12)

    def test_one_node_or_no_levels(self):
        for nodes, depth in ((1, 3), (4, 0)):
            result = fastest(TABLES["falling"], MACHINES["nodes almost free"], nodes, depth)
            assert (result.tree.nodes, result.speedup, result.bound, result.loss) == (1, 1, 1, 0)


def trees_of_all_widths(table: AcceptanceTable, nodes: int, depth: int) -> tuple[Int64, Int64, Float64]:
    """Return the nodes, draft widths and tokens of the best trees within every choice of draft widths."""
    sizes, widths, tokens = [np.array([1])], [np.zeros((1, depth), np.int64)], [np.ones(1)]
    for limits in itertools.product(range(1, nodes), repeat=depth - 1):
        if sum(limits) < nodes:
            solution = solve(table, nodes, depth, draft_widths=[1, *limits])
            sizes.append(solution.tree_nodes[1:, 2:].ravel())
            by_depth = np.stack([solution.draft_widths(levels) for levels in range(depth + 1)])
            widths.append(by_depth[solution.tree_depth, solution.tree_nodes][1:, 2:].reshape(-1, depth))
            tokens.append(solution.expected_tokens[1:, 2:].ravel())
    return np.concatenate(sizes), np.concatenate(widths), np.concatenate(tokens)


class TestUpToTwentyFourNodes:
    """For rows that never rise, the best trees within every choice of widths hold the fastest tree."""

    NODES = 24

    def test_no_tree_is_faster(self):
        depth = 3
        for seed in range(2):
            rng = np.random.default_rng(seed)
            table = AcceptanceTable(drawn_table(rng, depth, "falling"))
            solution, (sizes, widths, tokens) = (
                solve(table, self.NODES, depth),
                trees_of_all_widths(table, self.NODES, depth),
            )
            for _ in range(25):
                costs = costs_of(drawn_seconds(rng, self.NODES))
                best = costs.speedup(tokens, costs.step_s(sizes, widths)).max()
                result = fastest_tree(solution, costs)
                assert result.speedup == pytest.approx(best, rel=ROUNDING)
                assert result.bound >= best * (1 - ROUNDING)


class TestControls:
    def test_most_tokens_for_each_budget_and_depth_are_not_enough(self):
        """The fastest tree is often narrower than any tree of most tokens."""
        beaten = {
            (machine, table)
            for machine, table in itertools.product(MACHINES, FALLING)
            if fastest_of_most_tokens(TABLES[table], MACHINES[machine], NODES, DEPTH)
            < fastest(TABLES[table], MACHINES[machine], NODES, DEPTH).speedup * (1 - 1e-3)
        }
        assert ("wide drafts dear", "falling") in beaten
        assert ("wide drafts dear", "one row for every depth") in beaten

    def test_a_line_above_the_costs_breaks_the_bound(self, monkeypatch):
        line_below = speed_bound._line_below
        monkeypatch.setattr(speed_bound, "_line_below", lambda seconds: tuple(2 * item for item in line_below(seconds)))
        assert broken_bounds("falling", 200)

    def test_too_expensive_levels_break_the_bound(self, monkeypatch):
        least_s = speed_bound._least_s
        monkeypatch.setattr(speed_bound, "_least_s", lambda *of: 1.1 * least_s(*of))
        assert broken_bounds("falling", 200)


def large(kind: str, seed: int) -> tuple[_Search, StepCosts]:
    """Return the search for a random machine of 64 nodes and 8 levels."""
    rng = np.random.default_rng(seed)
    solution, costs = solve(AcceptanceTable(drawn_table(rng, 8, kind)), 64, 8), costs_of(drawn_seconds(rng, 64))
    return _Search(solution, costs, None, solution_speedups(solution, costs)), costs


class TestSteps:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_speedup_within_limits_is_that_of_its_tree(self, kind):
        for seed in range(4):
            search, _ = large(kind, seed)
            for limits in [(1,), (1, 2), (1, 3, 2), (1, 2, 5, 1)]:
                grown = search._within(limits)
                tree = search.tree(grown)
                assert search.speedup(tree) == pytest.approx(grown.speedup, rel=1e-12)
                assert (tree.nodes, tuple(tree.draft_widths)) == (grown.nodes, grown.widths)
                assert all(width <= limit for width, limit in zip(grown.widths, limits, strict=False))

    def test_climbing_ends_where_no_limit_helps(self):
        search, _ = large("ranked", 55)
        start = next(search.starts())
        tree = search.climb(start)
        assert search.speedup(tree) > 1.01 * search._within(start).speedup
        assert search.climb(tuple(tree.draft_widths.tolist())) == tree

    def test_exchanges_find_trees_that_no_limits_give(self):
        search, _ = large("ranked", 130)
        climbed = max(map(search.climb, search.starts()), key=search.speedup)
        assert search.speedup(search.exchange(climbed)) > 1.01 * search.speedup(climbed)


class TestLevelWidths:
    def test_level_widths_are_obeyed_on_drawn_machines(self):
        for number, (p, machine, nodes, depth) in enumerate(drawn("falling", 100)):
            widths = np.random.default_rng(number).integers(1, 5, depth).tolist()
            result = fastest(p, machine, nodes, depth, widths)
            best = every_speedup(p, machine, nodes, depth, widths).max()
            assert result.speedup == pytest.approx(best, rel=1e-12)
            assert result.bound >= best * (1 - ROUNDING)
            assert all(width <= most for width, most in zip(result.tree.level_widths[1:], widths, strict=False))

    def test_one_number_holds_for_every_depth(self):
        p, machine = TABLES["falling"], MACHINES["nodes almost free"]
        solution = solve(AcceptanceTable(p), NODES, DEPTH, level_widths=2)
        result = fastest_tree(solution, costs_of(machine), level_widths=2)
        assert result.speedup == fastest(p, machine, NODES, DEPTH, [2] * DEPTH).speedup
        assert result.tree.level_widths.max() == 2
