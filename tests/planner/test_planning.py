"""Profile to plan: against every tree, chain and budget tried one by one, on invented machines."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from tests.solver.oracles import by_enumeration, catalogue, node_value, paths_of, rows_of
from tests.support.invented_machines import (
    DEPTH,
    FALLING,
    MACHINES,
    NODES,
    TABLES,
    acceptance,
    latency,
    profile,
    profile_of,
    seconds,
)
from tests.support.planner_oracles import every_speedup, speedup, step_s, tokens
from treeopt import __version__
from treeopt.planner import Option, Plan, plan, step_model, tree_file
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree, chain

PAIRS = dict.fromkeys(
    [*itertools.product(MACHINES, ["falling", "not monotone"]), *itertools.product(["nodes cost"], TABLES)]
)
cases = pytest.mark.parametrize(("machine", "table"), PAIRS, ids=", ".join)


@functools.cache
def planned(machine: str, table: str, noise: float = 0.0) -> Plan:
    p = TABLES[table]
    made = profile(
        [latency(MACHINES[machine], noise=noise)],
        [acceptance(p, standard_error=np.full(np.shape(p), noise / 5) if noise else None)],
    )
    return plan(made, NODES, max_depth=DEPTH)


def speed(machine: str, table: str, tree: TokenTree) -> float:
    return speedup(tree.parents.tolist(), TABLES[table], MACHINES[machine])


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


class TestBest:
    @cases
    def test_options_are_the_best_of_every_tree_chain_and_budget(self, machine, table):
        result, most = planned(machine, table), most_tokens(table)
        best = every_speedup(TABLES[table], MACHINES[machine], NODES, DEPTH).max()
        assert result.tree.tree == result.fastest.tree
        assert result.tree.speedup.value <= best * (1 + 1e-12)
        assert best <= result.fastest.bound * (1 + 1e-12)
        if result.fastest.loss == 0 or table in FALLING:
            assert result.tree.speedup.value == close(best)
        assert result.chain.speedup.value == close(max(speed(machine, table, chain(d)) for d in range(DEPTH + 1)))
        assert result.chain.tree == chain(result.chain.tree.max_depth)
        needed = {nodes for nodes in (2, 4, 8, 9) if np.any(most[:, nodes] > most[:, nodes - 1] * (1 + 1e-12))}
        assert [option.tree.nodes for option in result.budgets] == sorted(needed)
        for option in result.budgets:
            assert option.speedup.value == close(fastest_of_most_tokens_with(table, machine, option.tree.nodes))
        options = (result.plain, result.chain, result.tree)  # in a tie the simplest wins
        speeds = [option.speedup.value for option in options]
        assert result.choice is options[speeds.index(max(speeds))]
        assert result.confidence.probability == 1

    @cases
    def test_intervals_contain_the_value_and_plain_decoding_is_exactly_1(self, machine, table):
        """Not 0.9999999999999999, which 1 / t * t is for some t, and which would lose a tie."""
        result = planned(machine, table, 0.1)
        for option in (result.tree, result.chain, result.plain, *result.budgets):
            for estimate in estimates(option):
                assert 0 < estimate.low <= estimate.value <= estimate.high < np.inf
        assert (
            dataclasses.astuple(result.plain.speedup) == dataclasses.astuple(result.plain.tokens_per_step) == (1, 1, 1)
        )
        assert (result.plain.tree, result.plain.kind) == (chain(0), "plain")

    @pytest.mark.parametrize("first_s", [49.0, 0.00191, 1 / 3])
    def test_plain_decoding_is_exactly_1_at_any_pace(self, first_s):
        result = plan(profile_of(seconds(lambda n: first_s * n, lambda _: first_s), [0.5]), 4, max_depth=2)
        assert result.plain.speedup.value == 1

    def test_level_widths_are_obeyed(self):
        machine, widths = MACHINES["nodes almost free"], [2, 2, 1, 2, 1]
        result = plan(profile_of(machine, TABLES["falling"]), NODES, max_depth=DEPTH, level_widths=widths)
        best = every_speedup(TABLES["falling"], machine, NODES, DEPTH, widths).max()
        assert result.tree.speedup.value == close(best)
        assert best < planned("nodes almost free", "falling").tree.speedup.value
        assert all(
            w <= m
            for c in (result.tree, *result.budgets)
            for w, m in zip(c.tree.level_widths[1:], widths, strict=False)
        )


@functools.cache
def most_tokens(table: str) -> np.ndarray:
    return by_enumeration(TABLES[table], NODES, DEPTH)


def fastest_of_most_tokens_with(table: str, machine: str, nodes: int) -> float:
    """Return the largest speedup of the trees of `nodes` nodes that no smaller or shallower one matches in tokens."""
    p, trees, most = TABLES[table], catalogue(NODES), most_tokens(table)
    rows = rows_of(p, DEPTH)
    yielded = trees.holds @ np.array([node_value(path, rows) for path in trees.paths])
    speedups = every_speedup(p, MACHINES[machine], NODES, DEPTH)
    best = 0.0
    for depth in range(1, DEPTH + 1):
        if most[depth, nodes] > most[depth, nodes - 1] * (1 + 1e-12):
            ties = (trees.size == nodes) & (trees.depth <= depth) & (yielded >= most[depth, nodes] * (1 - 1e-12))
            best = max(best, speedups[ties].max())
    return best


class TestChoice:
    @pytest.mark.parametrize(
        ("machine", "table", "kind"),
        [
            ("drafts dear", "falling", "plain"),
            ("overhead dear", "weak", "plain"),
            ("nodes almost free", "never", "plain"),
            ("wide drafts dear", "always", "chain"),
            ("nodes almost free", "always", "chain"),
            ("nodes almost free", "falling", "tree"),
            ("tiles of 4", "not monotone", "tree"),
        ],
    )
    def test_plain_chain_or_tree_is_chosen(self, machine, table, kind):
        assert planned(machine, table).choice.kind == kind

    def test_chain_is_chosen_if_nodes_are_expensive(self):
        """A second child would be accepted one time in ten and costs three tenths of a step."""
        machine = seconds(lambda n: 0.7 + 0.3 * n, lambda w: 0.01 + 0.3 * (w - 1))
        result = plan(profile_of(machine, [[0.85, 0.1]] * DEPTH), NODES, max_depth=DEPTH)
        assert result.choice.kind == "chain"
        assert result.choice.tree.max_depth > 1


class TestObjective:
    @pytest.mark.parametrize("table", TABLES)
    def test_objective_tokens_ignores_costs(self, table):
        result = plan(profile_of(MACHINES["drafts dear"], TABLES[table]), NODES, max_depth=DEPTH, objective="tokens")
        assert result.objective == "tokens"
        assert result.tree.tokens_per_step.value == close(most_tokens(table)[DEPTH, NODES])
        longest = max(
            (chain(depth) for depth in range(DEPTH + 1)), key=lambda t: tokens(paths_of(t.parents), TABLES[table])
        )
        assert result.chain.tokens_per_step.value == close(tokens(paths_of(longest.parents.tolist()), TABLES[table]))
        assert result.choice.tokens_per_step.value == close(most_tokens(table)[DEPTH, NODES])

    def test_in_a_tie_the_simplest(self):
        profile = profile_of(MACHINES["drafts dear"], TABLES["always"])
        assert plan(profile, 4, objective="tokens").choice.kind == "chain"
        assert plan(profile_of(MACHINES["drafts dear"], TABLES["never"]), 4, objective="tokens").choice.kind == "plain"

    def test_fastest_tree_is_reported_too(self):
        result = plan(profile_of(MACHINES["drafts dear"], TABLES["falling"]), NODES, objective="tokens")
        assert result.fastest.tree == chain(0)
        assert result.choice.speedup.value < 1


class TestRequest:
    def test_the_smallest_budget(self):
        result = plan(profile_of(MACHINES["nodes cost"], [0.9]), 1)
        assert result.tree.tree == result.chain.tree == result.plain.tree == chain(0)
        assert result.choice.kind == "plain"

    def test_rule_and_temperature_select_the_acceptance(self):
        first, other = acceptance(TABLES["falling"]), acceptance([[0.99, 0.01]], rule="target", sampling=Sampling())
        made = profile([latency(MACHINES["nodes almost free"])], [first, other])
        for options in ({"rule": "target"}, {"temperature": 0.0}, {"rule": "target", "temperature": 0.0}):
            result = plan(made, 8, **options)
            assert (result.rule, result.temperature, result.solution.max_depth) == ("target", 0.0, 1)
        assert step_model(made, PlanRequest(raw=True)).acceptance is first

    def test_context_and_batch_size_select_the_times(self):
        cheap, dear = MACHINES["nodes almost free"], MACHINES["drafts dear"]
        made = profile(
            [latency(cheap), latency(dear, context_tokens=512), latency(dear, batch_size=4)], [acceptance([0.8])]
        )
        assert plan(made, 8).choice.kind != "plain"
        assert plan(made, 8, context_tokens=512).choice.kind == "plain"
        assert plan(made, 8, batch_size=4).choice.kind == "plain"
        between = plan(made, 8, context_tokens=384)
        assert between.model.step_s(chain(1)) == close((step_s([(), (0,)], cheap) + step_s([(), (0,)], dear)) / 2)
        assert (between.context_tokens, between.model.point.batch_size) == (384, 1)

    def test_a_larger_depth_than_measured_is_limited_with_a_warning(self):
        made = profile_of(MACHINES["nodes cost"], TABLES["falling"])
        expected, deeper = plan(made, 8), plan(made, 8, max_depth=6)
        assert deeper.budgets == expected.budgets
        assert expected.warnings == ()
        (warning,) = deeper.warnings
        assert str(warning) == (
            "the depth is 6, but acceptance was measured to depth 5; deeper trees were not planned. "
            "Ask for at most 5, or measure deeper."
        )


class TestExtrapolated:
    made = profile_of(seconds(lambda n: 1.0 + 1e-3 * n, lambda _: 0.01), [0.7, 0.2], counts=[1, 2, 4])

    def test_more_nodes(self):
        result = plan(self.made, NODES, max_depth=DEPTH, extrapolate=True)
        machine = seconds(lambda n: 1.0 + 1e-3 * n, lambda _: 0.01)
        assert result.tree.speedup.value == close(every_speedup([0.7, 0.2], machine, NODES, DEPTH).max())
        assert result.tree.tree.nodes > 4

    def test_other_contexts(self):
        result = plan(self.made, 4, context_tokens=9999, extrapolate=True)
        assert (result.context_tokens, result.model.point.extrapolated) == (9999, True)

    def test_budgets_end_where_measurements_do_unless_extrapolated(self):
        within, beyond = plan(self.made, 4), plan(self.made, NODES)
        assert (within.warnings, beyond.solution.max_nodes) == ((), 4)
        assert beyond.choice == within.choice == plan(self.made).choice
        (warning,) = beyond.warnings
        assert f"--max-tokens {NODES} " in warning.action
        assert plan(self.made, NODES, extrapolate=True).warnings == ()

    def test_extrapolated_draws_below_0_do_not_raise(self):
        """The medians themselves stay well above 0; noise takes some draws of the line through them below."""
        short, long = (seconds(lambda n, f=f: f + 0.1 * n, lambda _: 0.1) for f in (2.0, 1.8))
        made = profile(
            [latency(short, noise=0.3), latency(long, context_tokens=512, noise=0.3)], [acceptance([0.7, 0.2])]
        )
        result = plan(made, 4, context_tokens=2048, extrapolate=True)
        assert result.choice.step_s.value > 0.5
        assert 0 < result.choice.step_s.low < result.choice.step_s.value


def estimates(candidate: Option) -> tuple:
    return (candidate.tokens_per_step, candidate.step_s, candidate.speedup)


class TestNoise:
    def test_equal_profiles_give_equal_plans(self):
        first = planned("nodes cost", "falling", 0.1)
        second = planned.__wrapped__("nodes cost", "falling", 0.1)
        assert first.confidence == second.confidence
        for one, other in zip((first.choice, *first.budgets), (second.choice, *second.budgets), strict=True):
            assert one.tree == other.tree
            assert estimates(one) == estimates(other)


class TestConfidence:
    def test_noise_lowers_the_confidence(self):
        result = planned("nodes cost", "falling", 0.5).confidence
        assert 0 < result.probability < 0.9
        assert result.if_exact[result.weakest] >= result.probability
        assert result.weakest in ("acceptance", "verify", "draft", "overhead")


class TestTreeFile:
    def test_provenance_contains_prediction_and_source(self):
        made = profile_of(MACHINES["nodes almost free"], TABLES["falling"])
        result = plan(made, NODES)
        written = tree_file(result, made, source="profile.yaml")
        assert written.tree == result.choice.tree
        np.testing.assert_array_equal(written.reach, AcceptanceTable(TABLES["falling"]).reach(written.tree))
        provenance = written.provenance
        assert (provenance.tool, provenance.source) == (f"treeopt {__version__}", "profile.yaml")
        assert (provenance.rule, provenance.temperature) == ("sequoia", 0.6)
        assert (provenance.pair, provenance.machine) == ("big + small", "invented")
        assert provenance.speedup == result.choice.speedup.value
        assert provenance.tokens_per_step == pytest.approx(written.reach.sum())
        assert provenance.step_s == result.choice.step_s.value

    def test_reach_is_that_of_the_smoothed_table(self):
        measured = acceptance([[0.3, 0.4]] * 2, counts=[20.0] * 2)
        made = profile([latency(MACHINES["nodes almost free"])], [measured])
        result = plan(made, 3)
        assert tree_file(result, made, source="x").reach.tolist() == pytest.approx([1, 0.35, 0.35])
