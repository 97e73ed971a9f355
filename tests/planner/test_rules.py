"""Rules and trees planned together: against every tree under every rule, tried one by one."""

import functools

import numpy as np
import pytest

from tests.support.invented_machines import (
    Seconds,
    acceptance,
    drawn_seconds,
    drawn_table,
    latency,
    profile,
    seconds,
)
from tests.support.planner_oracles import every_speedup
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import Plan, plan, requested_plan, requested_schedule, schedule, step_model, tree_file
from treeopt.planner.request import PlanRequest
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling

NODES, DEPTH = 7, 4
EVEN, STEEP = [[0.45, 0.45]] * DEPTH, [[0.66, 0.02]] * DEPTH
"""The first accepts more at each node; the second more along a chain."""
NODES_DEAR = seconds(lambda n: 0.7 + 0.3 * n, lambda _: 0.02, 0.05, nodes=NODES)
NODES_FREE = seconds(lambda n: 1.0 + 1e-4 * n, lambda _: 0.02, 0.05, nodes=NODES)


def measured(machine: Seconds, *, overheads: dict[str, float] | None = None, **tables: object) -> Profile:
    """Return the profile of one machine and a table for each rule."""
    return profile([latency(machine, overheads=overheads)], [acceptance(p, rule=rule) for rule, p in tables.items()])


def row_sum(p: object) -> float:
    """Return what a node's children accept together at the first depth."""
    return float(np.sum(p[0]))


@functools.cache
def drawn(seed: int) -> tuple[Seconds, dict[str, object], dict[str, float]]:
    """Return a machine with a falling table and an overhead for each of three rules."""
    rng = np.random.default_rng(seed)
    rules = ("sequoia", "target", "traversal")
    machine = drawn_seconds(rng, NODES)
    return (
        machine,
        {rule: drawn_table(rng, DEPTH, "falling") for rule in rules},
        dict(zip(rules, rng.uniform(0, 0.3, 3), strict=True)),
    )


@functools.cache
def best_speedups(seed: int) -> dict[str, float]:
    """Return the speedup of the fastest tree of all under each rule."""
    machine, tables, overheads = drawn(seed)
    return {
        rule: every_speedup(p, machine._replace(overhead=overheads[rule]), NODES, DEPTH).max()
        for rule, p in tables.items()
    }


class TestBest:
    @pytest.mark.parametrize("seed", range(20))
    def test_rule_and_tree_are_the_fastest_of_all_pairs(self, seed):
        machine, tables, overheads = drawn(seed)
        result, best = plan(measured(machine, overheads=overheads, **tables), NODES), best_speedups(seed)
        assert result.choice.speedup.value == pytest.approx(max(best.values()), rel=1e-9)
        assert best[result.rule] == pytest.approx(max(best.values()), rel=1e-9)
        assert [item.rule for item in result.rules] == list(tables)
        assert [item.speedup.value for item in result.rules] == pytest.approx(list(best.values()), rel=1e-9)

    def test_row_sums_would_choose_another_rule(self):
        """Negative control: acceptance at a node says less than the best tree does."""
        wrong = 0
        for seed in range(20):
            best = best_speedups(seed)
            by_sum = max(drawn(seed)[1], key=lambda rule, seed=seed: row_sum(drawn(seed)[1][rule]))
            wrong += best[by_sum] < max(best.values()) * (1 - 1e-6)
        assert wrong > 2

    def test_overhead_of_a_rule_changes_the_choice(self):
        tables = {"sequoia": [[0.7, 0.1]] * DEPTH, "traversal": [[0.74, 0.1]] * DEPTH}
        assert plan(measured(NODES_FREE, **tables), NODES).rule == "traversal"
        result = plan(measured(NODES_FREE, overheads={"traversal": 0.4}, **tables), NODES)
        assert result.rule == "sequoia"
        fast, slow = result.rules[0], result.rules[1]
        assert slow.tokens_per_step.value > fast.tokens_per_step.value
        assert slow.step_s.value > fast.step_s.value + 0.3

    def test_the_objective_decides_what_is_compared(self):
        made = measured(
            NODES_FREE, overheads={"traversal": 3.0}, sequoia=[[0.7, 0.1]] * DEPTH, traversal=[[0.74, 0.1]] * DEPTH
        )
        assert plan(made, NODES).rule == "sequoia"
        assert plan(made, NODES, objective="tokens").rule == "traversal"

    @pytest.mark.parametrize("order", [1, -1])
    def test_in_a_tie_the_one_measured_first(self, order):
        names = ["sequoia", "target", "traversal"][::order]
        result = plan(measured(NODES_FREE, **dict.fromkeys(names, EVEN)), NODES)
        assert result.rule == names[0]
        assert [item.rule for item in result.rules] == names

    def test_plan_is_that_of_its_rule_alone(self):
        made = measured(NODES_DEAR, sequoia=EVEN, target=STEEP)
        result, alone = plan(made, NODES), plan(made, NODES, rule="target")
        assert numbers(result) == numbers(alone)
        assert result.rules[1:] == alone.rules
        assert result.fastest == alone.fastest

    def test_all_rules_have_draws_with_their_own_overhead(self):
        made = profile(
            [latency(NODES_FREE, noise={"overhead": 0.5}, overheads={"typical": 0.4})],
            [acceptance(EVEN), acceptance(EVEN, rule="typical")],
        )
        common, own = (step_model(made, PlanRequest(rule=item.rule)).drawn_costs for item in made.acceptances)
        assert np.median(common.overhead_s) == pytest.approx(0.05, rel=0.05)
        assert np.median(own.overhead_s) == pytest.approx(0.4, rel=0.05)
        assert own.overhead_s.std() > 5 * common.overhead_s.std() > 0
        np.testing.assert_array_equal(common.verify_s, own.verify_s)


def numbers(result: Plan) -> tuple:
    return result.rule, result.choice.tree, result.choice.speedup, result.confidence


class TestRequest:
    made = profile(
        [latency(NODES_FREE)],
        [
            acceptance(p, rule=rule, sampling=Sampling(temperature))
            for rule, temperature, p in (
                ("sequoia", 0.6, EVEN),
                ("target", 0.0, STEEP),
                ("sequoia", 0.0, EVEN),
                ("target", 0.6, STEEP),
                ("typical", 0.6, [[0.9, 0.05]] * DEPTH),
            )
        ],
    )

    @pytest.mark.parametrize(
        ("options", "temperature", "rules"),
        [
            ({}, 0.6, ["sequoia", "target"]),
            ({"lossy": True}, 0.6, ["sequoia", "target", "typical"]),
            ({"temperature": 0.0}, 0.0, ["target", "sequoia"]),
            ({"rule": "target"}, 0.0, ["target"]),
            ({"rule": "target", "temperature": 0.6}, 0.6, ["target"]),
            ({"rule": "typical", "lossy": True}, 0.6, ["typical"]),
            ({"rule": "sequoia", "lossy": True}, 0.6, ["sequoia"]),
        ],
        ids=str,
    )
    def test_the_rules_of_one_temperature_are_planned(self, options, temperature, rules):
        result = plan(self.made, NODES, **options)
        assert result.temperature == temperature
        assert [item.rule for item in result.rules] == rules
        best = max(result.rules, key=lambda item: item.speedup.value)
        assert (result.rule, result.choice) == (best.rule, best)

    def test_a_rule_measured_twice_is_planned_once(self):
        twice = profile([latency(NODES_FREE)], [acceptance(EVEN), acceptance(STEEP, sampling=Sampling(0.6, 0.9))])
        result = plan(twice, NODES)
        assert len(result.rules) == 1
        assert result.model.acceptance.table.p.tolist() == EVEN

    def test_unknown_rule_can_be_planned(self):
        made = measured(NODES_FREE, sequoia=STEEP, foreign=[[0.95, 0.01]] * DEPTH)
        assert plan(made, NODES).rule == plan(made, NODES, rule="foreign").rule == "foreign"


class TestLossy:
    made = measured(NODES_FREE, typical=[[0.95, 0.02]] * DEPTH, sequoia=STEEP)

    def test_lossy_rule_is_left_out_unless_allowed(self):
        assert plan(self.made, NODES).rule == "sequoia"
        result = plan(self.made, NODES, lossy=True)
        assert (result.rule, result.lossy) == ("typical", True)
        assert [(item.rule, item.lossy) for item in result.rules] == [("typical", True), ("sequoia", False)]

    @pytest.mark.parametrize("make", [requested_plan, requested_schedule])
    def test_lossy_rule_by_name_raises_unless_allowed(self, make):
        with pytest.raises(InvalidValueError, match="allow it with lossy=True, or --lossy"):
            make(self.made, PlanRequest(max_nodes=NODES, rule="typical"))
        make(self.made, PlanRequest(max_nodes=NODES, rule="typical", lossy=True))

    @pytest.mark.parametrize("make", [requested_plan, requested_schedule])
    def test_lossy_rules_alone_raise(self, make):
        with pytest.raises(
            InfeasibleError, match=r"only lossy ones were measured.*typical\. Profile a lossless one, or"
        ):
            make(measured(NODES_FREE, typical=EVEN), PlanRequest(max_nodes=NODES))

    def test_lossy_rules_alone_at_a_temperature_raise(self):
        made = profile([latency(NODES_FREE)], [acceptance(EVEN, rule="typical"), acceptance(EVEN, sampling=Sampling())])
        with pytest.raises(InfeasibleError, match=r"only lossy ones were measured at temperature 0\.6, "):
            plan(made, NODES, temperature=0.6)
        assert plan(made, NODES).temperature == 0.0
        assert plan(made, NODES, temperature=0.0).rule == "sequoia"
        assert [item.temperature for item in schedule(made, max_nodes=NODES).plans] == [0.0]

    def test_tree_file_marks_lossy_rules(self, tmp_path):
        for options, reason in (({"lossy": True}, True), ({}, None)):
            written = tree_file(plan(self.made, NODES, **options), self.made, source="profile.yaml")
            assert written.provenance.lossy is reason
            written.save(tmp_path / "tree.json")
            assert ('"lossy": true' in (tmp_path / "tree.json").read_text("utf-8")) == bool(reason)
