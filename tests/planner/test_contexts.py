"""Acceptance between context lengths: against straight lines through what was measured, worked out in plain loops."""

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.planner.test_scheduling import speed
from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.planner import schedule, step_model
from treeopt.planner.dependence import Dependence
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import count_acceptance
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, chain

SHORT, LONG = [[0.8, 0.1], [0.7, 0.1], [0.7, 0.1]], [[0.2, 0.1], [0.1, 0.1], [0.1, 0.0]]
MIDDLE = [[0.5, 0.3], [0.5, 0.2], [0.4, 0.2]]
TABLES = {10: SHORT, 110: MIDDLE, 310: LONG}
MACHINE = seconds(lambda n: 1 + 0.05 * n, lambda w: 0.1 + 0.01 * w, 0.05, nodes=9)
TREES = [chain(0), chain(2), TokenTree([-1, 0, 0]), TokenTree([-1, 0, 0, 1, 1, 3])]


def by_context(tables: dict[int, object] = TABLES, **changes: object) -> Profile:
    """Return a profile of one machine at every context length, with a table at each."""
    result = [replace(acceptance(p, **changes), context_tokens=context) for context, p in tables.items()]
    return profile([latency(MACHINE, context_tokens=context) for context in tables], result)


def reached(tree: TokenTree, p: list[list[float]]) -> float:
    """Return the expected tokens of a tree, node by node."""
    reach: list[float] = []
    for node, parent in enumerate(tree.parents.tolist()):
        row = p[int(tree.depth[node]) - 1]
        reach.append(1.0 if parent < 0 else reach[parent] * row[int(tree.rank[node])])
    return sum(reach)


def straight(tree: TokenTree, context: int) -> float:
    """Return the tokens between the two measured lengths around a context, on a straight line; outside as at the end."""
    contexts = sorted(TABLES)
    if context <= contexts[0] or context >= contexts[-1]:
        return reached(tree, TABLES[contexts[0] if context <= contexts[0] else contexts[-1]])
    low, high = next((a, b) for a, b in itertools.pairwise(contexts) if a <= context <= b)
    share = (context - low) / (high - low)
    return (1 - share) * reached(tree, TABLES[low]) + share * reached(tree, TABLES[high])


class TestTokens:
    def test_tokens_are_interpolated(self) -> None:
        for context, tree in itertools.product((10, 11, 60, 110, 250, 310), TREES):
            result = step_model(by_context(), PlanRequest(context_tokens=context, raw=True))
            assert result.tokens_per_step(tree) == pytest.approx(straight(tree, context), rel=1e-12), (context, tree)

    def test_nearest_context_holds_outside(self) -> None:
        for context, tree in itertools.product((1, 9, 311, 9999), TREES):
            result = step_model(by_context(), PlanRequest(context_tokens=context, raw=True, extrapolate=True))
            assert result.tokens_per_step(tree) == pytest.approx(straight(tree, context), rel=1e-12)

    def test_acceptance_without_context_holds_everywhere(self) -> None:
        result = profile([latency(MACHINE, context_tokens=item) for item in TABLES], [acceptance(SHORT)])
        for context in (10, 60, 310):
            assert step_model(result, PlanRequest(context_tokens=context)).tokens_per_step(chain(2)) == pytest.approx(
                reached(chain(2), SHORT)
            )

    def test_interpolated_table_is_as_deep_as_the_shallowest_and_as_wide_as_the_widest(self) -> None:
        measured = by_context({10: [[0.5, 0.2]] * 3, 20: [[0.4, 0.2, 0.1]] * 2, 40: [0.3]})
        first, second, last = (
            step_model(measured, PlanRequest(context_tokens=context, raw=True)).acceptance.table.p
            for context in (10, 15, 30)
        )
        assert first.shape == (3, 2)
        np.testing.assert_allclose(second, [[0.45, 0.2, 0.05]] * 2)
        np.testing.assert_allclose(last, [[0.35, 0.1, 0.05]] * 2)

    def test_each_rule_is_interpolated_alone(self) -> None:
        result = [replace(acceptance(p), context_tokens=at) for at, p in TABLES.items()]
        others = [replace(acceptance(MIDDLE, rule="target"), context_tokens=at) for at in TABLES]
        both = profile([latency(MACHINE, context_tokens=item) for item in TABLES], [*others, *result])

        assert step_model(both, PlanRequest(rule="sequoia", context_tokens=210)).tokens_per_step(
            chain(2)
        ) == pytest.approx(straight(chain(2), 210))
        assert step_model(both, PlanRequest(rule="target", context_tokens=210)).tokens_per_step(
            chain(2)
        ) == pytest.approx(reached(chain(2), MIDDLE))


class TestReplay:
    @staticmethod
    def measured(seed: int, context: int) -> MeasuredAcceptance:
        """Return acceptance of eight sequences, some of which end before the longer context, with their ranks."""
        rng = np.random.default_rng(seed)
        sequences = [rng.choice([-1, 0, 0, 0, 1], 60 if number or context < 50 else 0) for number in range(8)]
        counts = [count_acceptance((item[:, None] == np.arange(2)).astype(float), item, 3) for item in sequences]
        sums = SequenceSums([item.reached for item in counts], [item.accepted for item in counts])
        return replace(
            acceptance(sums.table().p, sequences=sums, accepted_ranks=AcceptedRanks(sequences)), context_tokens=context
        )

    def test_replays_are_interpolated(self) -> None:
        low, high = self.measured(1, 10), self.measured(2, 110)
        result = profile([latency(MACHINE, context_tokens=item) for item in (10, 110)], [low, high])
        tree = TokenTree([-1, 0, 0, 1])
        known = [Dependence(item.table, item.accepted_ranks).tokens(tree) for item in (low, high)]

        model = step_model(result, PlanRequest(context_tokens=35, raw=True))
        assert model.tokens.replayed
        assert model.tokens_per_step(tree) == pytest.approx(0.75 * known[0] + 0.25 * known[1], rel=1e-12)

    def test_prediction_between_a_replay_and_a_table_is_not_replayed(self) -> None:
        low, high = self.measured(1, 10), replace(self.measured(2, 110), accepted_ranks=None)
        result = profile([latency(MACHINE, context_tokens=item) for item in (10, 110)], [low, high])
        assert [step_model(result, PlanRequest(context_tokens=item)).tokens.replayed for item in (10, 60, 110)] == [
            True,
            False,
            False,
        ]

    def test_draws_are_interpolated_one_by_one(self) -> None:
        """Texts are the same at both lengths, so errors do not cancel out between them."""
        low, high = self.measured(1, 10), self.measured(2, 110)
        result = profile([latency(MACHINE, context_tokens=item) for item in (10, 110)], [low, high])
        ends = [
            step_model(result, PlanRequest(context_tokens=item, raw=True)).tokens.draw_tokens(chain(2))
            for item in (10, 110)
        ]

        middle = step_model(result, PlanRequest(context_tokens=60, raw=True)).tokens.draw_tokens(chain(2))
        np.testing.assert_allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-12)
        assert middle.std() > 0


class TestSchedules:
    @pytest.mark.parametrize("seed", range(3))
    def test_segments_have_the_fastest_planned_tree(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        tables = {
            context: np.sort(rng.uniform(0, 0.3, (3, 2)) + rng.choice([0.0, 0.3]) * np.array([1, 0]))[:, ::-1].tolist()
            for context in (5, 40, 90)
        }
        result = schedule(by_context(tables), max_nodes=7, raw=True)
        rivals = {item.tree for made in result.plans for item in made.rules}

        def speed_at(tree: TokenTree, context: int) -> float:
            low, high = (5, 40) if context <= 40 else (40, 90)
            share = (context - low) / (high - low)
            tokens = (1 - share) * reached(tree, tables[low]) + share * reached(tree, tables[high])
            return speed(tree, tables[low], MACHINE) / reached(tree, tables[low]) * tokens

        covered = []
        for segment in result.over_contexts:
            first, last = segment.context_tokens
            for context in range(first, last + 1):
                best = max(speed_at(tree, context) for tree in rivals)
                assert speed_at(segment.option.tree, context) >= best * (1 - 1e-9), context
            covered += range(first, last + 1)
        assert covered == list(range(5, 91))
        assert all(before.option.tree != after.option.tree for before, after in pairwise(result.over_contexts))

    def test_every_batch_size_has_its_own_segments(self) -> None:
        result = [replace(acceptance(p), context_tokens=at) for at, p in ((10, SHORT), (310, SHORT))]
        latencies = [latency(MACHINE, context_tokens=at, batch_size=size) for size in (1, 4) for at in (10, 310)]
        segments = schedule(profile(latencies, result), max_nodes=4, raw=True).over_contexts
        assert [(segment.batch_sizes, segment.context_tokens) for segment in segments] == [
            ((1, 1), (10, 310)),
            ((4, 4), (10, 310)),
        ]
