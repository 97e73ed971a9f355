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
    drawn_seconds,
    drawn_table,
    latency,
    profile,
    profile_of,
    seconds,
)
from tests.support.planner_oracles import every_speedup, speedup, step_s, tokens
from treeopt import __version__
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import Option, Plan, plan, step_model, tree_file
from treeopt.records.acceptance import AcceptanceTable
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

cases = pytest.mark.parametrize(
    ("machine", "table"), [pytest.param(m, t, id=f"{m}, {t}") for m, t in itertools.product(MACHINES, TABLES)]
)


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
    def test_the_tree_is_the_fastest_of_all(self, machine, table):
        found = planned(machine, table)
        best = every_speedup(TABLES[table], MACHINES[machine], NODES, DEPTH).max()
        assert found.tree.tree == found.fastest.tree
        assert found.tree.speedup.value == close(speed(machine, table, found.tree.tree))
        assert found.tree.speedup.value <= best * (1 + 1e-12)
        assert best <= found.fastest.bound * (1 + 1e-12)
        if found.fastest.loss == 0 or table in FALLING:
            assert found.tree.speedup.value == close(best)

    @cases
    def test_the_chain_is_the_fastest_of_every_depth(self, machine, table):
        found = planned(machine, table).chain
        assert found.speedup.value == close(max(speed(machine, table, chain(depth)) for depth in range(DEPTH + 1)))
        assert found.tree == chain(found.tree.max_depth)
        assert found.kind == ("chain" if found.tree.nodes > 1 else "plain")

    @cases
    def test_plain_decoding_is_exactly_1(self, machine, table):
        """Not 0.9999999999999999, which 1 / t * t is for some t, and which would lose a tie."""
        found = planned(machine, table, 0.2).plain
        assert dataclasses.astuple(found.speedup) == (1, 1, 1)
        assert dataclasses.astuple(found.tokens_per_step) == (1, 1, 1)
        assert found.tree == chain(0)
        assert found.kind == "plain"

    @pytest.mark.parametrize("first_s", [49.0, 0.00191, 1 / 3, 0.1, 1e-5])
    def test_plain_decoding_is_exactly_1_at_any_pace(self, first_s):
        found = plan(profile_of(seconds(lambda n: first_s * n, lambda _: first_s), [0.5]), 4, max_depth=2)
        assert found.plain.speedup.value == 1

    @cases
    def test_a_row_of_budgets(self, machine, table):
        """Of the trees of most tokens that need so many nodes, the fastest; sizes that no such tree needs are absent."""
        found, most = planned(machine, table), most_tokens(table)
        needed = {nodes for nodes in (2, 4, 8, 9) if np.any(most[:, nodes] > most[:, nodes - 1] * (1 + 1e-12))}
        assert [candidate.tree.nodes for candidate in found.budgets] == sorted(needed)
        for candidate in found.budgets:
            of_size = fastest_of_most_tokens_with(table, machine, candidate.tree.nodes)
            assert candidate.speedup.value == close(of_size)
            assert candidate.speedup.value <= found.tree.speedup.value * (1 + 1e-12)

    @cases
    def test_every_number_of_a_candidate_is_that_of_its_tree(self, machine, table):
        found = planned(machine, table)
        for candidate in (found.tree, found.chain, found.plain, *found.budgets):
            paths = paths_of(candidate.tree.parents.tolist())
            assert candidate.step_s.value == close(step_s(paths, MACHINES[machine]))
            assert candidate.tokens_per_step.value == close(tokens(paths, TABLES[table]))
            assert candidate.speedup.value == close(speed(machine, table, candidate.tree))
            count, verify = candidate.verify_tokens, MACHINES[machine].verify
            assert count >= candidate.tree.nodes
            assert verify[count - 1] == min(verify[candidate.tree.nodes - 1 :])

    def test_random_machines(self):
        for seed in range(40):
            rng = np.random.default_rng(seed)
            p, machine = drawn_table(rng, 4, "falling"), drawn_seconds(rng, 8)
            found = plan(profile_of(machine, p), 8)
            best = every_speedup(p, machine, 8, 4).max()
            assert found.tree.speedup.value == close(best)
            assert found.fastest.bound >= best * (1 - 1e-12)

    def test_level_widths_are_obeyed(self):
        machine, widths = MACHINES["nodes almost free"], [2, 2, 1, 2, 1]
        found = plan(profile_of(machine, TABLES["falling"]), NODES, max_depth=DEPTH, level_widths=widths)
        best = every_speedup(TABLES["falling"], machine, NODES, DEPTH, widths).max()
        assert found.tree.speedup.value == close(best)
        assert best < planned("nodes almost free", "falling").tree.speedup.value
        assert all(
            w <= m for c in (found.tree, *found.budgets) for w, m in zip(c.tree.level_widths[1:], widths, strict=False)
        )


@functools.cache
def most_tokens(table: str) -> np.ndarray:
    return by_enumeration(TABLES[table], NODES, DEPTH)


def fastest_of_most_tokens_with(table: str, machine: str, nodes: int) -> float:
    """Return the largest speedup of the trees of so many nodes that no smaller or shallower one matches in tokens."""
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
    @cases
    def test_the_fastest_and_in_a_tie_the_simplest(self, machine, table):
        found = planned(machine, table)
        kinds = (found.plain, found.chain, found.tree)
        assert found.choice is next(kind for kind in kinds if kind.speedup.value == max(k.speedup.value for k in kinds))

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
    def test_each_wins_where_it_should(self, machine, table, kind):
        assert planned(machine, table).choice.kind == kind

    def test_a_chain_wins_where_extra_nodes_are_dear(self):
        """A second child would be accepted one time in ten and costs three tenths of a step."""
        machine = seconds(lambda n: 0.7 + 0.3 * n, lambda w: 0.01 + 0.3 * (w - 1))
        found = plan(profile_of(machine, [[0.85, 0.1]] * DEPTH), NODES, max_depth=DEPTH)
        assert found.choice.kind == "chain"
        assert found.choice.tree.max_depth > 1

    def test_speculation_that_cannot_pay_is_not_chosen(self):
        found = planned("drafts dear", "falling")
        assert found.choice is found.plain
        assert found.tree.tree == found.chain.tree == chain(0)


class TestObjective:
    @pytest.mark.parametrize("table", TABLES)
    @pytest.mark.parametrize("machine", ["drafts dear", "nodes dear"])
    def test_most_tokens_whatever_they_cost(self, machine, table):
        found = plan(profile_of(MACHINES[machine], TABLES[table]), NODES, max_depth=DEPTH, objective="tokens")
        assert found.objective == "tokens"
        assert found.tree.tokens_per_step.value == close(most_tokens(table)[DEPTH, NODES])
        longest = max(
            (chain(depth) for depth in range(DEPTH + 1)), key=lambda t: tokens(paths_of(t.parents), TABLES[table])
        )
        assert found.chain.tokens_per_step.value == close(tokens(paths_of(longest.parents.tolist()), TABLES[table]))
        assert found.choice.tokens_per_step.value == close(most_tokens(table)[DEPTH, NODES])

    def test_in_a_tie_the_simplest(self):
        profile = profile_of(MACHINES["drafts dear"], TABLES["always"])
        assert plan(profile, 4, objective="tokens").choice.kind == "chain"
        assert plan(profile_of(MACHINES["drafts dear"], TABLES["never"]), 4, objective="tokens").choice.kind == "plain"

    def test_the_fastest_is_known_all_the_same(self):
        found = plan(profile_of(MACHINES["drafts dear"], TABLES["falling"]), NODES, objective="tokens")
        assert found.fastest.tree == chain(0)
        assert found.choice.speedup.value < 1

    def test_another_objective(self):
        with pytest.raises(InvalidValueError, match=r"objective: expected speed or tokens\. Got 'joules'"):
            plan(profile_of(MACHINES["nodes cost"], [0.9]), 4, objective="joules")


class TestAsked:
    def test_the_smallest_budget(self):
        found = plan(profile_of(MACHINES["nodes cost"], [0.9]), 1)
        assert found.tree.tree == found.chain.tree == found.plain.tree == chain(0)
        assert found.choice.kind == "plain"

    def test_no_levels_at_all(self):
        assert plan(profile_of(MACHINES["nodes cost"], [0.9]), 4, max_depth=0).tree.tree == chain(0)

    def test_what_was_asked_for_is_remembered(self):
        found = planned("nodes cost", "falling")
        assert (found.rule, found.temperature, found.context_tokens) == ("sequoia", 0.6, 256)
        assert (found.solution.max_nodes, found.solution.max_depth) == (NODES, DEPTH)
        assert found.objective == "speed"

    def test_the_acceptance_asked_for_is_used(self):
        first, other = acceptance(TABLES["falling"]), acceptance([[0.99, 0.01]], rule="target", temperature=0.0)
        made = profile([latency(MACHINES["nodes almost free"])], [first, other])
        for asked in ({"rule": "target"}, {"temperature": 0.0}, {"rule": "target", "temperature": 0.0}):
            found = plan(made, 8, **asked)
            assert (found.rule, found.temperature, found.solution.max_depth) == ("target", 0.0, 1)
        assert step_model(made, raw=True).acceptance is first

    def test_the_condition_asked_for_is_used(self):
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

    @pytest.mark.parametrize("nodes", [0, -3])
    def test_no_room_for_the_root(self, nodes):
        with pytest.raises(InvalidValueError, match=f"max_nodes: expected at least 1. Got {nodes}"):
            plan(profile_of(MACHINES["nodes cost"], [0.9]), nodes)

    def test_more_levels_than_were_measured(self):
        with pytest.raises(InfeasibleError, match=r"measured to depth 5\. Got 6"):
            plan(profile_of(MACHINES["nodes cost"], TABLES["falling"]), 8, max_depth=6)

    @pytest.mark.parametrize("asked", [{"rule": "target"}, {"temperature": 1.0}, {"context_tokens": 9}], ids=str)
    def test_conditions_that_were_not_measured(self, asked):
        with pytest.raises(InfeasibleError, match=r"was not measured.*\. Measured: "):
            plan(profile_of(MACHINES["nodes cost"], [0.9]), 8, **asked)

    def test_levels_wider_than_were_measured_are_not_used(self):
        made = profile_of(MACHINES["nodes almost free"], TABLES["falling"], draft_counts=[1, 2])
        found = plan(made, NODES, max_depth=DEPTH)
        narrow = MACHINES["nodes almost free"]._replace(draft=MACHINES["nodes almost free"].draft[:2])
        assert found.tree.speedup.value == close(every_speedup(TABLES["falling"], narrow, NODES, DEPTH).max())
        assert found.tree.tree.draft_widths.max() == 2
        with pytest.raises(InfeasibleError, match=r"measured for 1 to 2 tokens\. Got 3"):
            step_model(made).step_s(level_widths([3, 3]))


class TestExtrapolated:
    made = profile_of(seconds(lambda n: 1.0 + 1e-3 * n, lambda _: 0.01), [0.7, 0.2], counts=[1, 2, 4])

    def test_more_nodes(self):
        found = plan(self.made, NODES, max_depth=DEPTH, extrapolate=True)
        machine = seconds(lambda n: 1.0 + 1e-3 * n, lambda _: 0.01)
        assert found.tree.speedup.value == close(every_speedup([0.7, 0.2], machine, NODES, DEPTH).max())
        assert found.tree.tree.nodes > 4

    def test_other_contexts(self):
        found = plan(self.made, 4, context_tokens=9999, extrapolate=True)
        assert (found.context_tokens, found.model.point.extrapolated) == (9999, True)

    def test_budgets_end_where_measurements_do_unless_extrapolated(self):
        within, beyond = plan(self.made, 4), plan(self.made, NODES)
        assert (within.warnings, beyond.solution.max_nodes) == ((), 4)
        assert beyond.choice == within.choice == plan(self.made).choice
        (warning,) = beyond.warnings
        assert f"--max-tokens {NODES} " in warning.action
        assert plan(self.made, NODES, extrapolate=True).warnings == ()
        assert step_model(self.made, max_nodes=NODES).costs.max_nodes == 4

    def test_draws_that_fall_to_0_are_no_reason_to_refuse(self):
        """The medians themselves stay well above 0; noise takes some draws of the line through them below."""
        short, long = (seconds(lambda n, f=f: f + 0.1 * n, lambda _: 0.1) for f in (2.0, 1.8))
        made = profile(
            [latency(short, noise=0.3), latency(long, context_tokens=512, noise=0.3)], [acceptance([0.7, 0.2])]
        )
        found = plan(made, 4, context_tokens=2048, extrapolate=True)
        assert found.choice.step_s.value > 0.5
        assert 0 < found.choice.step_s.low < found.choice.step_s.value


def estimates(candidate: Option) -> tuple:
    return (candidate.tokens_per_step, candidate.step_s, candidate.speedup)


class TestNoise:
    @cases
    def test_intervals_contain_the_value(self, machine, table):
        found = planned(machine, table, 0.1)
        for candidate in (found.tree, found.chain, found.plain, *found.budgets):
            for estimate in estimates(candidate):
                assert 0 < estimate.low <= estimate.value <= estimate.high < np.inf

    def test_equal_profiles_give_equal_plans(self):
        first = planned("nodes cost", "falling", 0.1)
        second = planned.__wrapped__("nodes cost", "falling", 0.1)
        assert first.confidence == second.confidence
        for one, other in zip((first.choice, *first.budgets), (second.choice, *second.budgets), strict=True):
            assert one.tree == other.tree
            assert estimates(one) == estimates(other)

    def test_no_tree_is_promised_more_than_the_choice(self):
        found = planned("nodes cost", "falling")
        trees = [chain(2), chains(2, 4), k_ary(2, 2), level_widths([2, 3, 1, 1, 1]), TokenTree([-1, *[0] * 6])]
        assert all(found.model.speedup(tree) <= found.choice.speedup.value for tree in trees)

    def test_negative_overhead_counts_as_none(self):
        negative = MACHINES["negative overhead"]
        found = [plan(profile_of(m, [0.5]), NODES).choice.speedup for m in (negative, negative._replace(overhead=0.0))]
        assert found[0] == found[1]


class TestConfidence:
    @cases
    def test_what_is_certain_is_certain(self, machine, table):
        assert planned(machine, table).confidence.probability == 1

    def test_noise_makes_it_doubtful(self):
        found = planned("nodes cost", "falling", 0.5).confidence
        assert 0 < found.probability < 0.9
        assert found.without_weakest >= found.probability
        assert found.weakest in ("acceptance", "verify", "draft", "overhead")


class TestTreeFile:
    def test_it_tells_what_was_promised_and_where_the_promise_comes_from(self, tmp_path):
        made = profile_of(MACHINES["nodes almost free"], TABLES["falling"])
        found = plan(made, NODES)
        written = tree_file(found, made, source="profile.yaml")
        assert written.tree == found.choice.tree
        np.testing.assert_array_equal(written.reach, AcceptanceTable(TABLES["falling"]).reach(written.tree))
        provenance = written.provenance
        assert (provenance.tool, provenance.source) == (f"treeopt {__version__}", "profile.yaml")
        assert (provenance.rule, provenance.temperature) == ("sequoia", 0.6)
        assert (provenance.pair, provenance.machine) == ("big + small", "invented")
        assert provenance.speedup == found.choice.speedup.value
        assert provenance.tokens_per_step == pytest.approx(written.reach.sum())
        assert provenance.step_s == found.choice.step_s.value
        written.save(tmp_path / "tree.json")

    def test_its_reach_is_that_of_the_smoothed_table(self):
        measured = acceptance([[0.3, 0.4]] * 2, counts=[20.0] * 2)
        made = profile([latency(MACHINES["nodes almost free"])], [measured])
        found = plan(made, 3)
        assert tree_file(found, made, source="x").reach.tolist() == pytest.approx([1, 0.35, 0.35])
