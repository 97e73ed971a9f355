"""Curves of seconds: between the measured counts, padded, pooled, mixed, extrapolated."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.solver.oracles import paths_of
from tests.support.invented_machines import NODES, Seconds, acceptance, drawn_seconds, latency, profile, seconds
from tests.support.planner_oracles import least_from_here, smoothed, step_s
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import StepCosts
from treeopt.planner.costs import step_costs as step_costs_of
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.step_latency import RuleSteps, StepLatency, TimedTree
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

step_costs = partial(step_costs_of, rule="sequoia")
TREES = [chain(0), chain(1), chain(4), chains(2, 4), k_ary(2, 2), level_widths([2, 3, 2, 1]), TokenTree([-1, *[0] * 6])]


def at(*latencies: StepLatency, **options: object) -> OperatingPoint:
    return profile(latencies, [acceptance([0.5])]).at(**options)


def curves(machine: Seconds, **of_latency: object) -> StepCosts:
    return step_costs(at(latency(machine, **of_latency)))


def seconds_of(costs: StepCosts, tree: TokenTree) -> float:
    return float(costs.step_s(np.array([tree.nodes]), tree.draft_widths[None, :])[0])


def close(values: object) -> object:
    return pytest.approx(values, rel=1e-12)


class Read:
    """An estimator that takes medians from a function."""

    def __init__(self, read: Callable[[tuple[Timing, ...]], np.ndarray]) -> None:
        self.medians_s = read

    def sequence_weights(self, sequences: int) -> np.ndarray:
        raise AssertionError(f"no weights of {sequences} sequences are needed")


class TestStep:
    @pytest.mark.parametrize("tree", TREES, ids=repr)
    def test_every_level_pays_for_its_internal_nodes(self, tree):
        for seed in range(12):
            machine = drawn_seconds(np.random.default_rng(seed), NODES)
            expected = step_s(paths_of(tree.parents.tolist()), machine)
            assert seconds_of(curves(machine), tree) == close(expected)

    @pytest.mark.parametrize(("batch", "steps", "plain_s"), [(1, True, 1.1), (4, False, 1.1), (4, True, 1.5)])
    def test_plain_steps_of_several_sequences_are_not_padded(self, batch, steps, plain_s):
        machine = seconds(lambda n: 1.5 if n == 1 else 1.0 + 0.05 * n, lambda _: 0.1)
        timed = TimedTree(tree=chain(1), steps=Timing([1.3] * 25))
        measured = dataclasses.replace(
            latency(machine, batch_size=batch), steps=(RuleSteps(rule="sequoia", trees=(timed,)),) if steps else ()
        )
        costs = step_costs(at(measured, batch_size=batch))
        assert costs.plain_s.tolist() == close([plain_s])
        assert seconds_of(costs, chain(0)) == close(plain_s)

    @pytest.mark.parametrize(
        ("tree", "named"), [(chain(NODES), "nodes"), (level_widths([3, 3]), "internal nodes of a level")], ids=repr
    )
    def test_unmeasured_counts_raise(self, tree, named):
        costs = curves(seconds(lambda n: 1.0 * n, lambda w: 1.0 * w), draft_counts=[1, 2])
        assert (costs.max_nodes, costs.max_draft_width) == (NODES, 2)
        with pytest.raises(InfeasibleError, match=rf"^{named}: times were measured for 1 to \d+ tokens\. Got \d+: "):
            seconds_of(costs, tree)


class TestBetween:
    def test_times_are_straight_between_the_measured_counts(self):
        machine = seconds(lambda n: 1.0 + n * n, lambda w: 0.1 * w * w, nodes=24)
        costs = curves(machine, counts=[1, 3, 24], draft_counts=[1, 4])
        assert costs.verify_s[[0, 1, 2, 3]].tolist() == close([0, 2, 6, 10])
        assert costs.verify_s[[5, 24]].tolist() == close([10 + (577 - 10) * 2 / 21, 577])
        assert costs.draft_s.tolist() == close([0, 0.1, 0.6, 1.1, 1.6])


class TestPadded:
    def test_the_count_to_pad_to(self):
        for seed in range(40):
            machine = drawn_seconds(np.random.default_rng(seed), NODES)
            padded = curves(machine).verify.padded
            for nodes in range(1, NODES + 1):
                count, least = padded[nodes], min(machine.verify[nodes - 1 :])
                assert machine.verify[count - 1] == least
                assert all(machine.verify[n - 1] > least for n in range(nodes, count))

    def test_between_measured_counts_too(self):
        """From 4 tokens at 2 s the line falls to 8 tokens at 1 s, the cheapest pass after the first."""
        machine = Seconds([0.5, 0.9, 1.2, 2.0, 9.0, 9.0, 9.0, 1.0, 3.0], [0.1])
        costs = curves(machine, counts=[1, 2, 3, 4, 8, 9], draft_counts=[1])
        assert costs.verify.padded[1:].tolist() == [1, 2, 8, 8, 8, 8, 8, 8, 9]
        assert costs.verify_s.tolist() == close([0, 0.5, 0.9, 1, 1, 1, 1, 1, 1, 3])

    def test_in_a_tie_no_padding(self):
        assert step_costs(at(latency(seconds(lambda _: 1.0, lambda _: 0.1)))).verify.padded[3] == 3


def noisy(medians: list[float], noise: float, seed: int = 0) -> LatencyTable:
    """Return a curve measured at 1, 2, … tokens with medians that are exactly so, each sample off by up to `noise`."""
    rng = np.random.default_rng(seed)
    timings = []
    for median in medians:
        half = rng.uniform(0, noise, 12)
        timings.append(Timing(median * np.concatenate([[1], 1 + half, 1 - half])))
    return LatencyTable(range(1, len(medians) + 1), timings)


def with_curve(table: LatencyTable) -> OperatingPoint:
    return at(dataclasses.replace(latency(seconds(lambda _: 1.0, lambda _: 0.1)), verify=table))


def verify_s(table: LatencyTable) -> np.ndarray:
    return step_costs(with_curve(table)).verify_s


class TestPooled:
    def test_noisy_run_is_replaced_by_its_mean(self):
        result = verify_s(noisy([1.0, 1.3, 1.2, 1.25, 2.0], 0.3))
        assert result.tolist() == close([0, 1, 1.25, 1.25, 1.25, 2])

    def test_decrease_beyond_noise_is_kept(self):
        """A tile: 17 tokens are slow, 32 are fast. Had they been pooled, 32 tokens would seem slower than they are."""
        counts, medians = [1, 16, 17, 32], [1.0, 1.5, 3.0, 1.6]
        timings = noisy(medians, 0.05).timings
        result = verify_s(LatencyTable(counts, timings))
        assert result[32] == close(1.6)
        assert result[17] == close(1.6)
        assert result[16] == close(1.5)

    def test_times_without_noise_are_left_alone(self):
        medians = [1.0, 1.02, 1.01, 1.5, 1.49]
        assert verify_s(noisy(medians, 0.0)).tolist() == close([0, 1, 1.01, 1.01, 1.49, 1.49])

    def test_against_merging_block_by_block(self):
        pooled = 0
        for seed in range(80):
            rng = np.random.default_rng(seed)
            medians = (np.linspace(1, 1.5, 8) + rng.normal(0, rng.choice([0.02, 0.2]), 8)).tolist()
            table = noisy(medians, 0.1, seed)
            ends = [timing.interval_s for timing in table.timings]
            variance = [((high - low) / 2 / 1.959964) ** 2 for low, high in ends]
            expected = [-value for value in smoothed([-median for median in medians], variance)[0]]
            pooled += expected != medians
            assert verify_s(table).tolist() == close(least_from_here(expected))
        assert 20 < pooled < 80

    def test_draws_of_medians_are_pooled_as_the_medians_are(self):
        where = with_curve(noisy([1.0, 1.3, 1.2, 1.25, 2.0], 0.3))
        result = step_costs(where, estimator=Read(lambda timings: np.arange(1.0, 1 + len(timings)))).verify_s
        assert result.tolist() == close([0, 1, 3, 3, 3, 5])


class TestMixed:
    short = seconds(lambda n: 1.0 + 0.1 * n, lambda w: 0.1 * w, -0.2)
    long = seconds(lambda n: 2.0 + 0.5 * n, lambda w: 0.3 * w, 0.6)

    def test_seconds_between_conditions_lie_on_a_straight_line(self):
        where = at(latency(self.short, context_tokens=0), latency(self.long, context_tokens=100), context_tokens=25)
        costs = step_costs(where)
        assert costs.verify_s.tolist() == close(
            [0, *(0.75 * a + 0.25 * b for a, b in zip(self.short.verify, self.long.verify, strict=True))]
        )
        assert costs.draft_s[3] == close(0.75 * 0.3 + 0.25 * 0.9)
        assert costs.overhead_s == close(0)  # -0.2 and 0.6 mix to 0: clipped only afterwards

    def test_passes_are_padded_after_mixing(self):
        """A dip at 2 tokens and one at 3 do not both remain."""
        first, second = Seconds([1.0, 1.0, 3.0, 3.0], [0.1]), Seconds([1.0, 3.0, 1.0, 3.0], [0.1])
        where = at(latency(first, context_tokens=0), latency(second, context_tokens=100), context_tokens=50)
        assert step_costs(where).verify_s.tolist() == close([0, 1, 2, 2, 3])
        assert step_costs(where).verify.padded[1:].tolist() == [1, 2, 3, 4]

    def test_counts_end_where_one_condition_does(self):
        where = at(
            latency(self.short, context_tokens=0, counts=[1, 9]),
            latency(self.long, context_tokens=100, counts=[1, 2, 7]),
            context_tokens=50,
        )
        costs = step_costs(where)
        assert (costs.max_nodes, costs.max_draft_width) == (7, 7)
        assert costs.verify_s[4] == close((1.4 + 4.0) / 2)


class TestDraws:
    def test_draws_have_the_curves_of_each_alone(self):
        rng = np.random.default_rng(0)
        where = at(
            latency(drawn_seconds(rng, NODES), context_tokens=0),
            latency(drawn_seconds(rng, NODES), context_tokens=100),
            context_tokens=30,
        )
        drawn: list[np.ndarray] = []

        def read(timings: tuple[Timing, ...]) -> np.ndarray:
            drawn.append(rng.uniform(0.5, 1.5, (7, 2, len(timings))))
            return drawn[-1]

        together = step_costs(where, estimator=Read(read))
        assert together.verify_s.shape == (7, 2, NODES + 1)
        assert together.draft_s.shape == (7, 2, NODES + 1)
        assert together.overhead_s.shape == (7, 2)
        tree = level_widths([2, 3, 2])
        many = together.step_s(np.array([1, tree.nodes]), np.array([[0, 0, 0], tree.draft_widths]))
        assert many.shape == (7, 2, 2)
        for at_draw in np.ndindex(7, 2):
            values = iter(drawn)
            alone = step_costs(where, estimator=Read(lambda _: next(values)[at_draw]))  # noqa: B023
            np.testing.assert_allclose(together.verify_s[at_draw], alone.verify_s, rtol=1e-12)
            np.testing.assert_allclose(together.draft_s[at_draw], alone.draft_s, rtol=1e-12)
            assert many[at_draw].tolist() == close([alone.verify_s[1], seconds_of(alone, tree)])

    def test_drawn_overhead_is_never_below_0(self):
        where = at(latency(seconds(lambda n: 1.0 * n, lambda _: 0.1, 1.0)))
        values = iter([np.ones((3, NODES)), np.ones((3, NODES)), np.array([[-1.0], [0.5], [2.0]])])
        assert step_costs(where, estimator=Read(lambda _: next(values))).overhead_s.tolist() == [0, 0.5, 2]


class TestExtrapolated:
    def test_curves_continue_at_their_last_slope(self):
        machine = seconds(lambda n: 1.0 + n * n, lambda w: 0.1 * w)
        where = at(latency(machine, counts=[1, 3, 5], draft_counts=[1, 3]))
        costs = step_costs(where, max_nodes=9)
        assert (costs.max_nodes, costs.max_draft_width) == (9, 9)
        assert costs.verify_s[[5, 6, 9]].tolist() == close([26, 34, 58])
        assert costs.draft_s[[3, 9]].tolist() == close([0.3, 0.9])

    def test_one_measured_count_holds_for_all(self):
        where = at(latency(seconds(lambda n: 1.0 * n, lambda _: 0.1), draft_counts=[1]))
        assert step_costs(where, max_nodes=20).draft_s.tolist() == close([0] + [0.1] * 20)

    def test_curves_end_at_the_measured_pass_by_default(self):
        where = at(latency(seconds(lambda n: 1.0 * n, lambda _: 0.1), counts=[1, 5]))
        assert step_costs(where).max_nodes == 5
        assert step_costs(where, max_nodes=3).max_nodes == 5

    def test_extrapolated_counts_with_times_of_0_raise(self):
        where = at(latency(Seconds([3.0, 2.0, 1.0], [0.1, 0.1, 0.1])))
        assert step_costs(where).verify_s.tolist() == close([0, 1, 1, 1])
        with pytest.raises(InfeasibleError, match=r"^times: extrapolated to 0 seconds or fewer\. Ask for"):
            step_costs(where, max_nodes=4)

    def test_extrapolated_contexts_with_times_of_0_raise(self):
        cheap, dear = (seconds(lambda n, f=f: f * n, lambda _: 0.1) for f in (1.0, 2.0))
        latencies = latency(dear, context_tokens=100), latency(cheap, context_tokens=200)
        assert step_costs(at(*latencies, context_tokens=250, extrapolate=True)).verify_s[1] == close(0.5)
        with pytest.raises(InfeasibleError, match=r"extrapolated to 0 seconds or fewer"):
            step_costs(at(*latencies, context_tokens=300, extrapolate=True))


class TestRules:
    machine = seconds(lambda n: 1.0 * n, lambda _: 0.1, 0.5)

    def test_overhead_is_that_of_the_rule_if_measured(self):
        where = at(latency(self.machine, overheads={"typical": 0.2, "traversal": 0.9}))
        result = [step_costs_of(where, rule=rule) for rule in ("typical", "traversal", "sequoia")]
        assert [costs.overhead_s for costs in result] == close([0.2, 0.9, 0.5])
        assert [seconds_of(costs, chain(1)) for costs in result] == close([2.3, 3.0, 2.6])
        assert [seconds_of(costs, chain(0)) for costs in result] == [1, 1, 1]

    def test_rule_overhead_of_one_condition_is_interpolated(self):
        first = latency(self.machine, context_tokens=0, overheads={"typical": 0.1})
        where = at(first, latency(self.machine, context_tokens=100), context_tokens=25)
        assert step_costs_of(where, rule="typical").overhead_s == close(0.75 * 0.1 + 0.25 * 0.5)
        assert step_costs_of(where, rule="sequoia").overhead_s == close(0.5)
