"""Acceptance between context lengths: against straight lines through what was measured, worked out in plain loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.planner.test_scheduling import speed
from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InvalidValueError
from treeopt.planner import PlanRequest, plan, requested_model, schedule, step_model
from treeopt.planner.dependence import Dependence
from treeopt.planner.segments import chain_schedule
from treeopt.planner.tokens import token_models
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
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
    found = [replace(acceptance(p, **changes), context_tokens=context) for context, p in tables.items()]
    return profile([latency(MACHINE, context_tokens=context) for context in tables], found)


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
    def test_they_lie_on_straight_lines(self) -> None:
        for context, tree in itertools.product((10, 11, 60, 110, 250, 310), TREES):
            found = step_model(by_context(), context_tokens=context, raw=True)
            assert found.tokens_per_step(tree) == pytest.approx(straight(tree, context), rel=1e-12), (context, tree)

    def test_outside_the_nearest_holds(self) -> None:
        for context, tree in itertools.product((1, 9, 311, 9999), TREES):
            found = step_model(by_context(), context_tokens=context, raw=True, extrapolate=True)
            assert found.tokens_per_step(tree) == pytest.approx(straight(tree, context), rel=1e-12)

    def test_the_order_in_the_file_is_no_matter(self) -> None:
        turned = by_context(dict(reversed(TABLES.items())))
        for context in (10, 60, 250):
            found = [
                step_model(each, context_tokens=context).tokens_per_step(chain(3)) for each in (by_context(), turned)
            ]
            assert found[0] == found[1]

    def test_where_no_context_is_said_one_acceptance_holds_everywhere(self) -> None:
        found = profile([latency(MACHINE, context_tokens=each) for each in TABLES], [acceptance(SHORT)])
        for context in (10, 60, 310):
            assert step_model(found, context_tokens=context).tokens_per_step(chain(2)) == pytest.approx(
                reached(chain(2), SHORT)
            )

    def test_the_mixed_table_is_as_deep_as_all_and_as_wide_as_the_widest(self) -> None:
        found = step_model(by_context({10: [[0.5, 0.2]] * 3, 20: [[0.4, 0.2, 0.1]] * 2, 40: [0.3]}), raw=True)
        table = step_model(
            by_context({10: [[0.5, 0.2]] * 3, 20: [[0.4, 0.2, 0.1]] * 2, 40: [0.3]}), context_tokens=15, raw=True
        ).acceptance.table
        last = step_model(
            by_context({10: [[0.5, 0.2]] * 3, 20: [[0.4, 0.2, 0.1]] * 2, 40: [0.3]}), context_tokens=30, raw=True
        ).acceptance.table

        assert found.acceptance.table.p.shape == (3, 2)
        np.testing.assert_allclose(table.p, [[0.45, 0.2, 0.05]] * 2)
        np.testing.assert_allclose(last.p, [[0.35, 0.1, 0.05]] * 2)

    def test_rules_are_mixed_each_by_itself(self) -> None:
        found = [replace(acceptance(p), context_tokens=at) for at, p in TABLES.items()]
        others = [replace(acceptance(MIDDLE, rule="target"), context_tokens=at) for at in TABLES]
        both = profile([latency(MACHINE, context_tokens=each) for each in TABLES], [*others, *found])

        assert step_model(both, rule="sequoia", context_tokens=210).tokens_per_step(chain(2)) == pytest.approx(
            straight(chain(2), 210)
        )
        assert step_model(both, rule="target", context_tokens=210).tokens_per_step(chain(2)) == pytest.approx(
            reached(chain(2), MIDDLE)
        )


class TestReplay:
    @staticmethod
    def measured(seed: int, context: int) -> MeasuredAcceptance:
        """Return acceptance of eight texts, some of which end before the longer context, with their ranks."""
        rng = np.random.default_rng(seed)
        texts = [rng.choice([-1, 0, 0, 0, 1], 60 if number or context < 50 else 0) for number in range(8)]
        counts = [count_acceptance((each[:, None] == np.arange(2)).astype(float), each, 3) for each in texts]
        sums = SequenceSums([each.reached for each in counts], [each.accepted for each in counts])
        return replace(
            acceptance(sums.table().p, texts=sums, accepted_ranks=AcceptedRanks(texts)), context_tokens=context
        )

    def test_tokens_between_are_those_of_both_replays(self) -> None:
        low, high = self.measured(1, 10), self.measured(2, 110)
        found = profile([latency(MACHINE, context_tokens=each) for each in (10, 110)], [low, high])
        tree = TokenTree([-1, 0, 0, 1])
        known = [Dependence(each.table, each.accepted_ranks).tokens(tree) for each in (low, high)]

        model = step_model(found, context_tokens=35, raw=True)
        assert model.tokens.replayed
        assert model.tokens_per_step(tree) == pytest.approx(0.75 * known[0] + 0.25 * known[1], rel=1e-12)

    def test_draws_are_mixed_one_by_one(self) -> None:
        """Texts are the same at both lengths, so errors do not cancel out between them."""
        low, high = self.measured(1, 10), self.measured(2, 110)
        found = profile([latency(MACHINE, context_tokens=each) for each in (10, 110)], [low, high])
        ends = [step_model(found, context_tokens=each, raw=True).tokens.draw_tokens(chain(2)) for each in (10, 110)]

        middle = step_model(found, context_tokens=60, raw=True).tokens.draw_tokens(chain(2))
        np.testing.assert_allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-12)
        assert middle.std() > 0


class TestPlans:
    def test_each_context_has_its_own_tree(self) -> None:
        """Where drafts are good a long chain wins, where they are bad plain decoding: the times are the same."""
        found = by_context({10: [[0.95, 0.01]] * 4, 410: [[0.02, 0.01]] * 4})
        depths = [plan(found, 8, context_tokens=each).choice.tree.max_depth for each in (10, 200, 410)]

        assert depths == sorted(depths, reverse=True)
        assert depths[0] > 2
        assert depths[-1] == 0

    def test_the_model_that_is_asked_for_is_the_plans(self) -> None:
        request = PlanRequest(context_tokens=60, raw=True)
        assert requested_model(by_context(), request).tokens_per_step(chain(2)) == pytest.approx(straight(chain(2), 60))

    def test_chains_by_batch_size_hold_at_the_context_asked_for(self) -> None:
        for context in (10, 60, 310):
            (found,) = chain_schedule(by_context(), PlanRequest(context_tokens=context, raw=True))
            assert found.option.tokens_per_step.value == pytest.approx(straight(found.option.tree, context))


class TestSchedules:
    @pytest.mark.parametrize("seed", range(3))
    def test_the_fastest_rival_is_run_at_every_single_context(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        tables = {
            context: np.sort(rng.uniform(0, 0.3, (3, 2)) + rng.choice([0.0, 0.3]) * np.array([1, 0]))[:, ::-1].tolist()
            for context in (5, 40, 90)
        }
        found = schedule(by_context(tables), 7, raw=True)
        rivals = {each.tree for made in found.plans for each in made.rules}

        def speed_at(tree: TokenTree, context: int) -> float:
            low, high = (5, 40) if context <= 40 else (40, 90)
            share = (context - low) / (high - low)
            tokens = (1 - share) * reached(tree, tables[low]) + share * reached(tree, tables[high])
            return speed(tree, tables[low], MACHINE) / reached(tree, tables[low]) * tokens

        covered = []
        for segment in found.over_contexts:
            first, last = segment.context_tokens
            for context in range(first, last + 1):
                best = max(speed_at(tree, context) for tree in rivals)
                assert speed_at(segment.option.tree, context) >= best * (1 - 1e-9), context
            covered += range(first, last + 1)
        assert covered == list(range(5, 91))

    def test_switches_are_where_one_segment_ends_and_the_next_begins(self) -> None:
        found = schedule(by_context({10: [[0.95, 0.01]] * 4, 410: [[0.02, 0.01]] * 4}), 8, raw=True)

        assert len(found.switches) == len(found.over_contexts) - 1 > 0
        for (before, after), segment in zip(found.switches, found.over_contexts[1:], strict=True):
            assert after is segment
            assert before.context_tokens[1] + 1 == after.context_tokens[0]
            assert before.option.tree != after.option.tree

    def test_no_switch_goes_from_one_batch_size_to_another(self) -> None:
        found = [replace(acceptance(p), context_tokens=at) for at, p in ((10, SHORT), (310, SHORT))]
        latencies = [latency(MACHINE, context_tokens=at, batch_size=size) for size in (1, 4) for at in (10, 310)]
        assert schedule(profile(latencies, found), 4, raw=True).switches == ()


class TestRecords:
    def test_a_context_twice_and_a_context_beside_none_are_refused(self) -> None:
        at = [replace(acceptance(SHORT), context_tokens=each) for each in (10, 10, None)]
        for pair, told in ((at[:2], "10 tokens of context twice"), (at[1:], "in all of 'sequoia' at temperature 0")):
            with pytest.raises(InvalidValueError, match=told):
                profile([latency(MACHINE, context_tokens=10)], pair)

    def test_models_are_kept(self) -> None:
        found = by_context()
        models = token_models(found, found.acceptances[0])
        assert models.at(60) is models.at(60)
        assert models.at(110) is models.measured[1]
        assert isinstance(models.acceptance.table, AcceptanceTable)
