"""The fastest tree: against every tree there is, with bounds that no tree may break."""

import functools
import itertools

import numpy as np
import pytest

from tests.solver.oracles import Table
from tests.support.invented_machines import DEPTH, FALLING, MACHINES, NODES, TABLES, Seconds, drawn_seconds, drawn_table
from tests.support.planner_oracles import every_speedup, fastest_of_most_tokens, least_from_here, speedup
from tests.support.slow import first_fast, slow
from treeopt.planner import Fastest, bound, fastest_tree, prices
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
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


def fastest(
    p: Table, machine: Seconds, nodes: int, depth: int, level_widths: list[int] | None = None, **limits: int
) -> Fastest:
    solution = solve(AcceptanceTable(p), nodes, depth, level_widths=level_widths)
    return fastest_tree(solution, costs_of(machine), level_widths=level_widths, **limits)


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


def broken(kind: str, count: int) -> list[int]:
    """Return the numbers of the random cases in which some tree is faster than the bound, or the found than all."""
    wrong = []
    for number, case in enumerate(drawn(kind, count)):
        found, best = fastest(*case), every_speedup(*case).max()
        if found.bound < best * (1 - ROUNDING) or found.speedup > best * (1 + ROUNDING):
            wrong.append(number)
    return wrong


class TestOptimum:
    @cases
    def test_no_tree_is_faster(self, machine, table):
        found = fastest(TABLES[table], MACHINES[machine], NODES, DEPTH)
        best = every_speedup(TABLES[table], MACHINES[machine], NODES, DEPTH).max()
        assert found.speedup <= best * (1 + ROUNDING)
        assert best <= found.bound * (1 + ROUNDING)
        assert found.speedup == pytest.approx(speedup(found.tree.parents.tolist(), TABLES[table], MACHINES[machine]))
        if found.loss == 0 or table in FALLING:
            assert found.speedup == pytest.approx(best, rel=1e-12)
            assert found.bound == found.speedup

    @pytest.mark.parametrize("count", first_fast([100, 300]))
    def test_no_tree_is_faster_on_drawn_machines(self, count):
        for case in drawn("falling", count):
            found, best = fastest(*case), every_speedup(*case).max()
            assert (found.speedup, found.loss) == (pytest.approx(best, rel=1e-12), 0)

    @pytest.mark.parametrize(
        ("kind", "count"), [*itertools.product(KINDS, [100]), *slow(itertools.product(KINDS, [400]))]
    )
    def test_no_tree_breaks_the_bound_on_drawn_machines(self, kind, count):
        assert broken(kind, count) == []

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "most_open"), [("rising", 0.04), ("ranked", 0.04)])
    def test_where_rows_rise_the_bound_is_mostly_reached(self, kind, most_open):
        losses = []
        for case in drawn(kind, 300):
            found, best = fastest(*case), every_speedup(*case).max()
            losses.append(found.loss)
            assert found.loss > 0 or found.speedup == pytest.approx(best, rel=1e-12)
        assert np.mean(np.array(losses) > 0) <= most_open

    @pytest.mark.parametrize("kind", ["falling", "rising", "ranked"])
    def test_without_the_knapsack_the_prices_alone_hold(self, kind, monkeypatch):
        monkeypatch.setattr("treeopt.planner.prices.MAX_CELLS", 0)
        assert broken(kind, 40) == []

    @pytest.mark.parametrize("widest", [1, 2])
    def test_levels_wider_than_were_timed_are_left_out_though_they_yield_the_most(self, widest):
        even, machine = [[0.34, 0.33, 0.33]] * 3, MACHINES["nodes almost free"]
        narrow = machine._replace(draft=machine.draft[:widest])
        found = fastest(even, narrow, NODES, 3)
        assert fastest(even, machine, NODES, 3).tree.draft_widths.max() > widest
        assert found.tree.draft_widths.max() == widest
        assert found.speedup == pytest.approx(every_speedup(even, narrow, NODES, 3).max(), rel=1e-12)

    def test_one_node_or_no_levels(self):
        for nodes, depth in ((1, 3), (4, 0)):
            found = fastest(TABLES["falling"], MACHINES["nodes almost free"], nodes, depth)
            assert (found.tree.nodes, found.speedup, found.bound, found.loss) == (1, 1, 1, 0)


class TestControls:
    """Tests that cannot fail prove nothing: here they must."""

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

    def test_a_line_above_the_costs_is_noticed(self, monkeypatch):
        lines = bound.Box.lines

        def too_steep(box, costs):
            base_s, slope_s = lines(box, costs)
            return base_s, 2 * slope_s

        monkeypatch.setattr(bound.Box, "lines", too_steep)
        assert broken("falling", 100)

    def test_a_line_below_the_trees_is_noticed(self, monkeypatch):
        """As where a price on every node is subtracted from the best tree twice."""
        best = prices.best_of_any_size

        def too_small(values, skip):
            total, chosen = best(values, skip)
            return total - 0.02 * len(chosen), chosen

        monkeypatch.setattr(prices, "best_of_any_size", too_small)
        assert broken("falling", 100)

    def test_levels_paid_too_dearly_are_noticed(self, monkeypatch):
        def too_much(box, solution, costs):
            draft_s = np.cumsum(costs.draft_s[box.most])
            return draft_s[:, None] + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s

        monkeypatch.setattr(bound, "_least_seconds", too_much)
        assert broken("falling", 100)


class TestLevelWidths:
    @pytest.mark.parametrize("widths", [[1, 1, 1, 1, 1], [2, 3, 1, 2, 1], [3, 2, 2, 2, 2], [1, 4, 2, 9, 9]], ids=str)
    @pytest.mark.parametrize("machine", MACHINES)
    def test_they_are_obeyed(self, machine, widths):
        for table in FALLING:
            found = fastest(TABLES[table], MACHINES[machine], NODES, DEPTH, widths)
            best = every_speedup(TABLES[table], MACHINES[machine], NODES, DEPTH, widths).max()
            assert (found.speedup, found.loss) == (pytest.approx(best, rel=1e-12), 0)
            assert all(width <= most for width, most in zip(found.tree.level_widths[1:], widths, strict=False))

    def test_they_are_obeyed_on_drawn_machines(self):
        for number, (p, machine, nodes, depth) in enumerate(drawn("falling", 200)):
            widths = np.random.default_rng(number).integers(1, 5, depth).tolist()
            found = fastest(p, machine, nodes, depth, widths)
            best = every_speedup(p, machine, nodes, depth, widths).max()
            assert (found.speedup, found.loss) == (pytest.approx(best, rel=1e-12), 0)

    def test_one_number_holds_for_every_depth(self):
        p, machine = TABLES["falling"], MACHINES["nodes almost free"]
        solution = solve(AcceptanceTable(p), NODES, DEPTH, level_widths=2)
        found = fastest_tree(solution, costs_of(machine), level_widths=2)
        assert found.speedup == fastest(p, machine, NODES, DEPTH, [2] * DEPTH).speedup
        assert found.tree.level_widths.max() == 2


@functools.cache
def stopped_early(kind: str, seed: int) -> list[Fastest]:
    """Return what is known of a machine of 64 nodes and 8 levels after ever more boxes."""
    rng = np.random.default_rng(seed)
    p, machine = drawn_table(rng, 8, kind), drawn_seconds(rng, 64)
    solution, costs = solve(AcceptanceTable(p), 64, 8), costs_of(machine)
    return [fastest_tree(solution, costs, max_boxes=most) for most in (1, 2, 5, 25, 100)]


large = pytest.mark.parametrize("kind", ["falling", "rising", *slow(["ranked"])])
SEEDS = range(40)


class TestStoppedEarly:
    """64 nodes are too many to try every tree; but what is known after more boxes never contradicts what was before."""

    @large
    def test_the_speed_rises_and_never_passes_any_bound(self, kind):
        for found in (stopped_early(kind, seed) for seed in SEEDS):
            speeds = [each.speedup for each in found]
            assert speeds == sorted(speeds)
            assert speeds[-1] <= min(each.bound for each in found) * (1 + ROUNDING)

    @large
    def test_the_bound_falls(self, kind):
        for seed in SEEDS:
            bounds = [each.bound for each in stopped_early(kind, seed)]
            assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(bounds)), seed

    def test_falling_rows_are_solved_whole(self):
        assert all(stopped_early("falling", seed)[-1].loss == 0 for seed in SEEDS)

    @large
    def test_no_more_boxes_than_asked_for(self, kind):
        """One box is split into two."""
        for found in (stopped_early(kind, seed) for seed in SEEDS):
            assert all(each.boxes <= most + 1 for each, most in zip(found, (1, 2, 5, 25, 100), strict=True))

    def test_some_need_more_than_one_box(self):
        assert any(stopped_early("falling", seed)[-1].boxes > 1 for seed in SEEDS)
