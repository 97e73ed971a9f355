"""The fastest drafter at every context length, against speeds worked out in plain loops."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cli.invented import verify_s
from tests.planner.test_drafters import (
    CONTEXTS,
    SLOWDOWNS,
    TABLES,
    between,
    by_context,
    expected_tokens,
    rest_s,
    trees_at,
)
from tests.support.invented_machines import acceptance, latency, seconds
from tests.support.invented_machines import profile as invented_profile
from treeopt.planner import PlanRequest, drafter_choices, requested_plan, schedule, step_model
from treeopt.planner.drafters import drafters_over_contexts, predict_option
from treeopt.records.acceptance import AcceptanceTable

REQUEST = PlanRequest(max_nodes=8, raw=True)


@pytest.fixture(scope="module")
def profile():
    return by_context()


@pytest.fixture(scope="module")
def plans(profile):
    return schedule(profile, max_nodes=8, raw=True).single_sequence_plans(0.0)


def speed(profile, option, context):
    """Return the tokens per second of an option over those of plain decoding."""

    def pass_s(nodes):
        return between(context, [verify_s(nodes, entry, 1) for entry in CONTEXTS])

    model = step_model(profile, PlanRequest(context_tokens=context, raw=True))
    if option.drafter.name == "model":
        return model.speedup(option.tree)
    if not option.drafter.builds_own_trees:
        tokens = between(context, [expected_tokens(table, option.tree) for table in TABLES])
        step_s = pass_s(option.tree.nodes) + between(context, SLOWDOWNS) * rest_s(option.tree)
    else:
        length, ngram = (value for _, value in option.drafter.values)
        decoded = [
            entry.decoded.tokens_per_step
            for item in profile.drafters[1].decodes_at(0.0)
            for entry in item.settings
            if entry.values == option.drafter.values
        ]
        tokens, step_s = between(context, decoded), pass_s(length + 1) + 1e-4 * ngram
    return tokens / step_s * model.costs.plain_s.item()


def test_every_context_has_the_fastest_option(profile, plans):
    result = drafters_over_contexts(profile, REQUEST, plans)
    assert len({item.option.drafter.name for item in result}) > 1
    assert (result[0].context_tokens[0], result[-1].context_tokens[1]) == (CONTEXTS[0], CONTEXTS[-1])
    for before, after in pairwise(result):
        assert before.context_tokens[1] + 1 == after.context_tokens[0]
        assert (before.option.drafter, before.option.tree) != (after.option.drafter, after.option.tree)
    rivals = [
        item.option
        for plan in plans
        for item in drafter_choices(profile, replace(REQUEST, context_tokens=plan.context_tokens), plan=plan)
    ]
    for segment in result:
        first, last = segment.context_tokens
        assert segment.option.speedup.value == pytest.approx(speed(profile, segment.option, first), rel=3e-3)
        for context in {first, last, *range(first, last, 512)}:
            best = max(speed(profile, item, context) for item in rivals)
            assert speed(profile, segment.option, context) >= best * (1 - 3e-3), context


def test_one_drafter_alone_and_one_context_alone(profile, plans):
    for name in ("model", "prompt-lookup"):
        result = drafters_over_contexts(profile, REQUEST, plans, name)
        assert {item.option.drafter.name for item in result} == {name}
    assert drafters_over_contexts(profile, REQUEST, plans, "eagle") == ()
    assert drafters_over_contexts(profile, REQUEST, plans[:1]) == ()
    one = requested_plan(profile, REQUEST)
    assert drafters_over_contexts(profile, REQUEST, [one]) == ()


def test_trees_deeper_than_measured_are_left_out(profile):
    first, last = CONTEXTS[0], CONTEXTS[-1]
    base = profile.acceptances[0]
    deep = replace(base, context_tokens=first, table=AcceptanceTable([[0.9, 0.05]] * 6), sequences=None)
    shallow = replace(deep, context_tokens=last, table=AcceptanceTable([[0.9, 0.05]]))
    cut = replace(profile, acceptances=(deep, shallow))
    result = drafters_over_contexts(
        cut, REQUEST, schedule(cut, max_nodes=8, raw=True).single_sequence_plans(0.0), "model"
    )
    depths = {item.context_tokens: item.option.tree.max_depth for item in result}
    assert [depth > 1 for (start, _), depth in depths.items() if start == first] == [True]
    assert all(depth <= 1 for (_, end), depth in depths.items() if end > first), depths


def test_drafter_is_left_out_where_it_was_not_timed(profile, plans):
    medusa, lookup = profile.drafters
    trees = tuple(trees_at(context, AcceptanceTable([[0.95, 0.02]] * 3)) for context in CONTEXTS)
    timed = tuple(latency for latency in medusa.latencies if latency.context_tokens < CONTEXTS[-1])
    fast = replace(profile, drafters=(replace(medusa, trees=trees, latencies=timed), lookup))
    first, second, *_ = drafters_over_contexts(fast, REQUEST, plans)
    assert (first.option.drafter.name, first.context_tokens) == ("medusa", (CONTEXTS[0], CONTEXTS[1]))
    assert second.option.drafter.name != "medusa"
    alone = drafters_over_contexts(fast, REQUEST, plans, "medusa")
    assert (alone[0].context_tokens[0], alone[-1].context_tokens[1]) == (CONTEXTS[0], CONTEXTS[1])


def test_raw_acceptance_is_not_smoothed():
    rising = acceptance([[0.3, 0.4]] * 2, counts=[20.0] * 2)
    machine = seconds(lambda n: 1 + 0.01 * n, lambda _: 0.1, nodes=7)
    measured = invented_profile([latency(machine)], [rising])
    for raw in (True, False):
        request = PlanRequest(raw=raw)
        option = requested_plan(measured, request).chain
        point = measured.at(None, 1, rising.sampling)
        assert predict_option(option, measured, request, point).speedup == option.speedup
