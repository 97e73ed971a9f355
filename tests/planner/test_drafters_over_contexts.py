"""The fastest drafter at every context length, against speeds worked out in plain loops."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cli.invented import verify_s
from tests.planner.test_drafters import CONTEXTS, SLOWDOWNS, TABLES, between, by_context, expected_tokens, rest_s, trees_at
from treeopt.planner import PlanRequest, drafter_choices, requested_plan, schedule, step_model
from treeopt.planner.profile_plan import drafters_over_contexts
from treeopt.planner.segments import find_winners, winner_ranges
from treeopt.records.acceptance import AcceptanceTable

REQUEST = PlanRequest(max_nodes=8, raw=True)


@pytest.fixture(scope="module")
def profile():
    return by_context()


@pytest.fixture(scope="module")
def plans(profile):
    return schedule(profile, 8, raw=True).single_sequence_plans(0.0)


def speed(profile, option, context):
    """Return the tokens per second of an option over those of plain decoding."""

    def pass_s(nodes):
        return between(context, [verify_s(nodes, each, 1) for each in CONTEXTS])

    model = step_model(profile, context_tokens=context, raw=True)
    if option.drafter.name == "model":
        return model.speedup(option.tree)
    if not option.drafter.builds_own_trees:
        tokens = between(context, [expected_tokens(table, option.tree) for table in TABLES])
        step_s = pass_s(option.tree.nodes) + between(context, SLOWDOWNS) * rest_s(option.tree)
    else:
        length, ngram = (each.value for each in option.drafter.values)
        decoded = [
            each.decoded.tokens_per_step
            for item in profile.drafters[1].decodes_at(0.0)
            for each in item.settings
            if each.values == option.drafter.values
        ]
        tokens, step_s = between(context, decoded), pass_s(length + 1) + 1e-4 * ngram
    return tokens / step_s * model.costs.plain_s.item()


def test_the_fastest_of_the_best_at_every_measured_context_runs_everywhere(profile, plans):
    found = drafters_over_contexts(profile, REQUEST, plans)
    assert len({each.option.drafter.name for each in found}) > 1
    assert (found[0].context_tokens[0], found[-1].context_tokens[1]) == (CONTEXTS[0], CONTEXTS[-1])
    rivals = [
        each.option
        for plan in plans
        for each in drafter_choices(profile, replace(REQUEST, context_tokens=plan.context_tokens), plan=plan)
    ]
    for segment in found:
        first, last = segment.context_tokens
        assert segment.option.speedup.value == pytest.approx(speed(profile, segment.option, first), rel=3e-3)
        for context in {first, last, *range(first, last, 128)}:
            best = max(speed(profile, each, context) for each in rivals)
            assert speed(profile, segment.option, context) >= best * (1 - 3e-3), context


def test_switches_are_where_one_ends_and_the_next_begins(profile, plans):
    found = drafters_over_contexts(profile, REQUEST, plans)
    switches = list(pairwise(found))
    assert len(switches) == len(found) - 1 > 0
    for before, after in switches:
        assert before.context_tokens[1] + 1 == after.context_tokens[0]
        assert (before.option.drafter, before.option.tree) != (after.option.drafter, after.option.tree)


def test_one_drafter_alone_and_one_context_alone(profile, plans):
    for name in ("model", "medusa", "prompt-lookup"):
        found = drafters_over_contexts(profile, REQUEST, plans, name)
        assert {each.option.drafter.name for each in found} == {name}
    assert drafters_over_contexts(profile, REQUEST, plans, "eagle") == ()
    assert drafters_over_contexts(profile, REQUEST, plans[:1]) == ()
    one = requested_plan(profile, REQUEST)
    assert drafters_over_contexts(profile, REQUEST, [one]) == ()


def test_the_first_of_every_way_is_found():
    for ends in ((3,), (1, 2, 3, 9), (5, 6), (10,)):

        def fastest(value, ends=ends):
            return sum(value >= end for end in ends)

        found = find_winners([0, 4, 10], fastest)
        for (first, last), way in winner_ranges(found, 10):
            assert all(fastest(value) == way for value in range(first, last + 1))


def test_a_tree_is_the_fastest_only_where_levels_as_deep_were_measured(profile):
    first, last = CONTEXTS[0], CONTEXTS[-1]
    base = profile.acceptances[0]
    deep = replace(base, context_tokens=first, table=AcceptanceTable([[0.9, 0.05]] * 6), texts=None)
    shallow = replace(deep, context_tokens=last, table=AcceptanceTable([[0.9, 0.05]]))
    cut = replace(profile, acceptances=(deep, shallow))
    found = drafters_over_contexts(cut, REQUEST, schedule(cut, 8, raw=True).single_sequence_plans(0.0), "model")
    depths = {each.context_tokens: each.option.tree.max_depth for each in found}
    assert [depth > 1 for (start, _), depth in depths.items() if start == first] == [True]
    assert all(depth <= 1 for (_, end), depth in depths.items() if end > first), depths


def test_drafter_is_left_out_where_it_was_not_timed(profile, plans):
    medusa, lookup = profile.drafters
    trees = tuple(trees_at(context, AcceptanceTable([[0.95, 0.02]] * 3)) for context in CONTEXTS)
    timed = tuple(latency for latency in medusa.latencies if latency.context_tokens < CONTEXTS[-1])

    def segments(**changes):
        fast = replace(profile, drafters=(replace(medusa, trees=trees, **changes), lookup))
        options = drafters_over_contexts(fast, REQUEST, plans)
        return {segment.option.drafter.name: segment.context_tokens for segment in options}

    assert segments()["medusa"][1] > CONTEXTS[1]
    assert segments(latencies=timed)["medusa"] == (CONTEXTS[0], CONTEXTS[1])
