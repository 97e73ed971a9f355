"""Profile to plan: against every tree, chain and budget tried one by one, on invented machines."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from treeopt import __version__
from treeopt.acceptance import AcceptanceTable
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.latency import LatencyTable, Timing
from treeopt.planner import Candidate, StepModel, fastest_tree, plan, step_model, tree_file
from treeopt.profile import Machine, MeasuredAcceptance, Pair, Profile, StepLatency
from treeopt.solver import solve
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

NODES, DEPTH = 24, 5
MACHINE = Machine(device="cpu", processor="invented", threads=1, system="none", python="3.12", torch="2.8")
PAIR = Pair(target="big", draft="small", dtype="float32", vocabulary=256, target_parameters=9, draft_parameters=1)


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of an invented machine, as functions of the token count."""

    verify: Callable[[int], float]
    draft: Callable[[int], float]
    overhead: float = 0.0


COSTS = {
    "nodes almost free": Costs(lambda n: 1.0 + 1e-4 * n, lambda _: 0.01),
    "nodes cost": Costs(lambda n: 0.9 + 0.06 * n, lambda w: 0.15 + 0.004 * w, 0.05),
    "nodes dear": Costs(lambda n: 0.1 + 0.9 * n, lambda _: 0.001),
    "drafts dear": Costs(lambda n: 1.0 + 0.01 * n, lambda _: 5.0),
    "wide drafts dear": Costs(lambda n: 1.0 + 0.01 * n, lambda w: 0.01 + 0.12 * (w - 1)),
    "wide drafts cheap": Costs(lambda n: 1.0 + 0.02 * n, lambda w: 0.3 / w),
    "tiles of 8": Costs(lambda n: 1.0 + 0.3 * ((n - 1) // 8), lambda w: 0.05 * (1 + (w - 1) // 4)),
    "verify not monotone": Costs(lambda n: 1.0 + 0.5 * (n % 7 == 3) + 0.02 * n - 0.3 * (n == 16), lambda _: 0.02),
    "overhead dear": Costs(lambda _: 1.0, lambda _: 0.0001, 2.0),
    "negative overhead": Costs(lambda n: 1.0 + 0.02 * n, lambda _: 0.1, -0.5),
}
TABLES = {
    "falling": [
        [0.7, 0.15, 0.05, 0.02],
        [0.6, 0.2, 0.05, 0.02],
        [0.5, 0.2, 0.1, 0.1],
        [0.5] * 2 + [0.0] * 2,
        [0.9, 0.1, 0, 0],
    ],
    "not monotone": [[0.2, 0.0, 0.7], [0.1, 0.6, 0.1], [0.0, 0.0, 0.9], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]],
    "one row for every depth": [0.65, 0.2, 0.1],
    "never": [[0.0, 0.0]] * DEPTH,
    "always": [[1.0]] * DEPTH,
    "weak": [[0.2, 0.1]] * DEPTH,
}


def curve(cost: Callable[[int], float], counts: list[int], noise: float = 0.0, samples: int = 25) -> LatencyTable:
    rng = np.random.default_rng(1)
    return LatencyTable(counts, [Timing(cost(n) * (1 + noise * rng.uniform(-1, 1, samples))) for n in counts])


def invented_profile(
    costs: Costs,
    p: object,
    *,
    counts: list[int] | None = None,
    draft_counts: list[int] | None = None,
    noise: float = 0.0,
    standard_error: object = None,
) -> Profile:
    counts = counts or [*range(1, NODES + 1)]
    overhead = costs.overhead + noise * np.random.default_rng(2).uniform(-1, 1, 25)
    latency = StepLatency(
        context_tokens=256,
        batch_size=1,
        verify=curve(costs.verify, counts, noise),
        draft=curve(costs.draft, draft_counts or counts, noise),
        overhead=Timing(overhead, allow_negative=True),
    )
    acceptance = MeasuredAcceptance(
        rule="sequoia",
        temperature=0.6,
        top_p=1.0,
        prompts=9,
        positions=999,
        table=AcceptanceTable(p, standard_error=standard_error),
    )
    return Profile(
        created="2026-11-20T11:12:00Z",
        tool="test",
        machine=MACHINE,
        pair=PAIR,
        latencies=(latency,),
        acceptances=(acceptance,),
    )


def seconds(costs: Costs, tree: TokenTree) -> float:
    """Return the seconds of a step by walking over the tree: each level pays for its nodes with children."""
    if tree.nodes == 1:
        return costs.verify(1)
    internal = set(tree.parents[1:].tolist())
    widths = [
        sum(depth == level for depth in (int(tree.depth[i]) for i in internal)) for level in range(tree.max_depth)
    ]
    return sum(map(costs.draft, widths)) + costs.verify(tree.nodes) + max(0.0, costs.overhead)


def speed(costs: Costs, p: object, tree: TokenTree) -> float:
    return AcceptanceTable(p).expected_tokens(tree) / seconds(costs, tree) * costs.verify(1)


def every_tree(p: object, nodes: int = NODES) -> list[list[TokenTree]]:
    """Return the solution's trees of every depth, for each budget."""
    solution = solve(AcceptanceTable(p), nodes, DEPTH)
    return [[solution.tree(budget, depth) for depth in range(DEPTH + 1)] for budget in range(1, nodes + 1)]


cases = pytest.mark.parametrize(
    ("costs", "p"),
    [pytest.param(COSTS[c], TABLES[t], id=f"{c}, {t}") for c, t in itertools.product(COSTS, TABLES)],
)


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


class TestBest:
    @cases
    def test_the_tree_is_the_fastest_of_every_budget_and_depth(self, costs, p):
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH)
        best = max(speed(costs, p, tree) for trees in every_tree(p) for tree in trees)
        assert found.tree.speedup.value == close(best)
        assert speed(costs, p, found.tree.tree) == close(best)
        assert found.tree.kind == "tree"

    @cases
    def test_the_chain_is_the_fastest_of_every_depth(self, costs, p):
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH).chain
        assert found.speedup.value == close(max(speed(costs, p, chain(depth)) for depth in range(DEPTH + 1)))
        assert found.tree == chain(found.tree.max_depth)
        assert found.kind == "chain"

    @cases
    def test_plain_decoding_is_exactly_1(self, costs, p):
        """Not 0.9999999999999999, which 1 / t * t is for some t, and which would lose a tie."""
        found = plan(invented_profile(costs, p, noise=0.2), NODES, max_depth=DEPTH).plain
        assert dataclasses.astuple(found.speedup) == (1, 1, 1)
        assert dataclasses.astuple(found.tokens_per_step) == (1, 1, 1)
        assert found.tree == chain(0)
        assert found.kind == "plain"

    @pytest.mark.parametrize("first_s", [49.0, 0.00191, 1 / 3, 0.1, 1e-5])
    def test_plain_decoding_is_exactly_1_at_any_pace(self, first_s):
        found = plan(invented_profile(Costs(lambda n: first_s * n, lambda _: first_s), [0.5]), 4, max_depth=2)
        assert found.plain.speedup.value == 1

    @cases
    def test_a_row_of_budgets(self, costs, p):
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH)
        trees = every_tree(p)
        reachable = {nodes for nodes in (2, 4, 8, 16, 24) if any(tree.nodes == nodes for tree in trees[nodes - 1])}
        assert {candidate.tree.nodes for candidate in found.budgets} == reachable
        for candidate in found.budgets:
            same_size = [tree for tree in trees[candidate.tree.nodes - 1] if tree.nodes == candidate.tree.nodes]
            assert candidate.speedup.value == close(max(speed(costs, p, tree) for tree in same_size))
            assert candidate.speedup.value <= found.tree.speedup.value

    @cases
    def test_every_number_of_a_candidate_is_that_of_its_tree(self, costs, p):
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH)
        for candidate in (found.tree, found.chain, found.plain, *found.budgets):
            assert candidate.step_s.value == close(seconds(costs, candidate.tree))
            assert candidate.tokens_per_step.value == close(AcceptanceTable(p).expected_tokens(candidate.tree))
            assert candidate.speedup.value == close(speed(costs, p, candidate.tree))

    @pytest.mark.parametrize("seed", range(10))
    def test_random_machines(self, seed):
        """Every cost drawn anew for each count: no bound that expects order among them survives this."""
        rng = np.random.default_rng(seed)
        times = rng.uniform(0.5, 1.5, (2, NODES + 1)) * [[1.0], [0.1]]
        costs = Costs(lambda n: times[0, n], lambda w: times[1, w], rng.uniform(-0.1, 0.1))
        p = rng.dirichlet([2.0, 0.5, 0.5, 0.5], DEPTH)[:, :3]
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH)
        assert found.tree.speedup.value == close(max(speed(costs, p, t) for trees in every_tree(p) for t in trees))


class TestChoice:
    @cases
    def test_the_fastest_and_in_a_tie_the_simplest(self, costs, p):
        found = plan(invented_profile(costs, p), NODES, max_depth=DEPTH)
        kinds = (found.plain, found.chain, found.tree)
        assert found.choice is next(kind for kind in kinds if kind.speedup.value == max(k.speedup.value for k in kinds))

    @pytest.mark.parametrize(
        ("costs", "p", "kind"),
        [
            ("drafts dear", "falling", "plain"),
            ("overhead dear", "weak", "plain"),
            ("nodes almost free", "never", "plain"),
            ("wide drafts dear", "always", "chain"),
            ("nodes almost free", "always", "chain"),
            ("nodes almost free", "falling", "tree"),
            ("tiles of 8", "not monotone", "tree"),
        ],
    )
    def test_each_wins_where_it_should(self, costs, p, kind):
        assert plan(invented_profile(COSTS[costs], TABLES[p]), NODES, max_depth=DEPTH).choice.kind == kind

    def test_a_chain_wins_where_extra_nodes_are_dear(self):
        """A second child would be accepted one time in ten and costs three tenths of a step."""
        costs = Costs(lambda n: 0.7 + 0.3 * n, lambda w: 0.01 + 0.3 * (w - 1))
        found = plan(invented_profile(costs, [[0.85, 0.1]] * DEPTH), NODES, max_depth=DEPTH)
        assert found.choice.kind == "chain"
        assert found.choice.tree.max_depth > 1

    def test_speculation_that_cannot_pay_is_not_chosen(self):
        found = plan(invented_profile(COSTS["drafts dear"], TABLES["falling"]), NODES, max_depth=DEPTH)
        assert found.choice is found.plain
        assert found.tree.tree == found.chain.tree == chain(0)
        assert all(candidate.tree.nodes >= 1 for candidate in found.budgets)


class TestConditions:
    def test_the_smallest_budget(self):
        found = plan(invented_profile(COSTS["nodes cost"], [0.9]), 1)
        assert [candidate.tree for candidate in found.budgets] == [chain(0)]
        assert found.tree.tree == found.chain.tree == found.plain.tree == chain(0)

    def test_no_levels_at_all(self):
        assert plan(invented_profile(COSTS["nodes cost"], [0.9]), 4, max_depth=0).tree.tree == chain(0)

    def test_what_was_asked_for_is_remembered(self):
        found = plan(invented_profile(COSTS["nodes cost"], TABLES["falling"]), 8)
        assert (found.rule, found.temperature, found.context_tokens) == ("sequoia", 0.6, 256)
        assert (found.solution.max_nodes, found.solution.max_depth) == (8, 5)

    def test_the_acceptance_asked_for_is_used(self):
        profile = invented_profile(COSTS["nodes almost free"], TABLES["falling"])
        first = profile.acceptances[0]
        other = dataclasses.replace(first, rule="target", temperature=0.0, table=AcceptanceTable([[0.99, 0.01]]))
        profile = dataclasses.replace(profile, acceptances=(first, other))
        for asked in ({"rule": "target"}, {"temperature": 0.0}):
            found = plan(profile, 8, **asked)
            assert (found.rule, found.temperature, found.solution.max_depth) == ("target", 0.0, 1)
        assert step_model(profile).acceptance is first

    @pytest.mark.parametrize("nodes", [0, -3])
    def test_no_room_for_the_root(self, nodes):
        with pytest.raises(InvalidValueError, match=f"max_nodes: expected at least 1, the root. Got {nodes}"):
            plan(invented_profile(COSTS["nodes cost"], [0.9]), nodes)

    def test_more_nodes_than_were_measured(self):
        with pytest.raises(InfeasibleError, match=r"measured for 1 to 24 tokens\. Got 25: ask for fewer"):
            plan(invented_profile(COSTS["nodes cost"], [0.9]), NODES + 1)

    def test_more_levels_than_were_measured(self):
        with pytest.raises(InfeasibleError, match=r"measured to depth 5\. Got 6"):
            plan(invented_profile(COSTS["nodes cost"], TABLES["falling"]), 8, max_depth=6)

    @pytest.mark.parametrize("asked", [{"rule": "typical"}, {"temperature": 1.0}, {"context_tokens": 9}], ids=str)
    def test_conditions_that_were_not_measured(self, asked):
        with pytest.raises(InfeasibleError, match=r"was not measured\. Measured: "):
            plan(invented_profile(COSTS["nodes cost"], [0.9]), 8, **asked)

    def test_levels_wider_than_were_measured(self):
        profile = invented_profile(COSTS["nodes almost free"], TABLES["falling"], draft_counts=[1, 2])
        with pytest.raises(InfeasibleError, match=r"measured for 1 to 2 tokens\. Got 3"):
            step_model(profile).step_s(k_ary(3, 2))


TREES = [
    chain(0),
    chain(1),
    chain(5),
    chains(3, 4),
    k_ary(3, 2),
    level_widths([4, 3, 5, 2, 1]),
    TokenTree([-1, *[0] * 6]),
]


class TestModel:
    @pytest.mark.parametrize("tree", TREES, ids=repr)
    def test_seconds_and_speed(self, tree):
        costs, p = COSTS["nodes cost"], TABLES["falling"]
        model = step_model(invented_profile(costs, p))
        assert model.step_s(tree) == close(seconds(costs, tree))
        assert model.tokens_per_step(tree) == AcceptanceTable(p).expected_tokens(tree)
        assert model.speedup(tree) == close(speed(costs, p, tree))

    def test_between_the_measured_counts_times_are_straight(self):
        costs = Costs(lambda n: 1.0 + n * n, lambda w: 0.1 * w)
        model = step_model(invented_profile(costs, [0.5], counts=[1, 3, 24], draft_counts=[1]))
        assert model.step_s(chain(1)) == close(2 + 4 + 0.1)
        assert model.step_s(chain(4)) == close(10 + (577 - 10) * 2 / 21 + 4 * 0.1)

    def test_negative_overhead_counts_as_none(self):
        without = dataclasses.replace(COSTS["negative overhead"], overhead=0.0)
        found = [
            step_model(invented_profile(costs, [0.5])).step_s(chain(3))
            for costs in (COSTS["negative overhead"], without)
        ]
        assert found[0] == found[1]

    def test_plain_decoding_has_no_overhead(self):
        assert step_model(invented_profile(COSTS["overhead dear"], [0.5])).step_s(chain(0)) == 1

    def test_fastest_tree_of_a_solution(self):
        costs, p = COSTS["verify not monotone"], TABLES["not monotone"]
        model, solution = step_model(invented_profile(costs, p)), solve(AcceptanceTable(p), NODES, DEPTH)
        trees = [tree for same_budget in every_tree(p) for tree in same_budget]
        assert speed(costs, p, fastest_tree(model, solution)) == close(max(speed(costs, p, tree) for tree in trees))


def estimates(candidate: Candidate) -> tuple:
    return (candidate.tokens_per_step, candidate.step_s, candidate.speedup)


class TestIntervals:
    @pytest.mark.parametrize("tree", TREES, ids=repr)
    @pytest.mark.parametrize("table", ["falling", "not monotone", "one row for every depth"])
    def test_without_noise_they_are_points(self, tree, table):
        """The draws and `StepModel` reach the same numbers on separate ways."""
        profile = invented_profile(
            COSTS["wide drafts dear"], TABLES[table], counts=[1, 2, 7, 24], draft_counts=[1, 5, 24]
        )
        for estimate in estimates(step_model(profile).predict("tree", tree)):
            assert estimate.low == close(estimate.value)
            assert estimate.high == close(estimate.value)

    def test_without_noise_one_measured_count_is_enough(self):
        profile = invented_profile(Costs(lambda _: 1.0, lambda _: 0.1), [0.5], counts=[1, 24], draft_counts=[1])
        for estimate in estimates(step_model(profile).predict("chain", chain(4))):
            assert estimate.low == close(estimate.value) == estimate.high

    @cases
    def test_they_contain_the_value(self, costs, p):
        error = np.full(np.shape(p), 0.02)
        found = plan(invented_profile(costs, p, noise=0.1, standard_error=error), NODES, max_depth=DEPTH)
        for candidate in (found.tree, found.chain, found.plain, *found.budgets):
            for estimate in estimates(candidate):
                assert 0 < estimate.low <= estimate.value <= estimate.high < np.inf

    def test_they_grow_with_the_noise(self):
        def width(noise, error):
            standard_error = np.full((DEPTH, 4), error)
            profile = invented_profile(
                COSTS["nodes cost"], TABLES["falling"], noise=noise, standard_error=standard_error
            )
            speedup = step_model(profile).predict("tree", k_ary(2, 3)).speedup
            return speedup.high - speedup.low

        assert width(0, 0) < 1e-9 < width(0.02, 0) < width(0.2, 0)
        assert width(0, 0) < 1e-9 < width(0, 0.01) < width(0, 0.05)
        assert width(0.02, 0) < width(0.02, 0.05)

    def test_they_are_as_wide_as_what_was_measured(self):
        profile = invented_profile(COSTS["nodes cost"], [[0.5, 0.1]], noise=0.1, standard_error=[[0.02, 0.01]])
        found = step_model(profile).predict("chain", chain(1)).tokens_per_step
        assert (found.low, found.high) == pytest.approx((1.5 - 1.96 * 0.02, 1.5 + 1.96 * 0.02), abs=0.008)
        plain = step_model(profile).predict("plain", chain(0)).step_s
        low, high = profile.latencies[0].verify.timings[0].interval_s
        assert plain.high - plain.low == pytest.approx(high - low, rel=0.25)

    def test_equal_profiles_give_equal_plans(self):
        error = np.full((DEPTH, 4), 0.02)
        first, second = (
            plan(invented_profile(COSTS["nodes cost"], TABLES["falling"], noise=0.1, standard_error=error), NODES)
            for _ in range(2)
        )
        for one, other in zip((first.choice, *first.budgets), (second.choice, *second.budgets), strict=True):
            assert one.tree == other.tree
            assert estimates(one) == estimates(other)


class TestTreeFile:
    def test_it_tells_what_was_promised_and_where_the_promise_comes_from(self, tmp_path):
        profile = invented_profile(COSTS["nodes almost free"], TABLES["falling"])
        found = plan(profile, NODES)
        made = tree_file(found, profile, source="profile.yaml")
        assert made.tree == found.choice.tree
        np.testing.assert_array_equal(made.reach, AcceptanceTable(TABLES["falling"]).reach(made.tree))
        provenance = made.provenance
        assert (provenance.tool, provenance.source) == (f"treeopt {__version__}", "profile.yaml")
        assert (provenance.rule, provenance.temperature) == ("sequoia", 0.6)
        assert provenance.speedup == found.choice.speedup.value
        assert provenance.tokens_per_step == pytest.approx(made.reach.sum())
        made.save(tmp_path / "tree.json")


def test_the_model_is_public_enough_to_compare_any_trees():
    profile = invented_profile(COSTS["nodes cost"], TABLES["falling"])
    model = StepModel(profile.latency(), profile.acceptance())
    candidates = [model.predict("tree", tree) for tree in TREES]
    assert [candidate.tree for candidate in candidates] == TREES
    assert max(candidate.speedup.value for candidate in candidates) <= plan(profile, NODES).choice.speedup.value
