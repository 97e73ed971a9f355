"""Plans that fit in memory: weights, and a KV cache for every sequence."""

from dataclasses import replace

import pytest

from tests.cli.invented import FOUR_CONDITIONS, call, invented
from tests.planner.test_drafters import heads, lookup
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, drafter_choices, plan, requested_schedule, schedule
from treeopt.planner.request import Memory, device_memory
from treeopt.planner.scheduling import measured_points, tree_schedule

WEIGHTS, KV = 10_000_000, 1000


def with_memory(profile, weights=WEIGHTS, kv=KV):
    """Return a profile whose target takes these bytes, and whose draft a tenth of them."""
    pair = replace(
        profile.pair,
        target_weight_bytes=weights,
        target_kv_bytes=kv,
        draft_weight_bytes=weights // 10,
        draft_kv_bytes=kv // 10,
    )
    return replace(profile, pair=pair)


def taken_bytes(nodes, context, batch):
    """Return the bytes of weights and caches, worked out by hand."""
    return WEIGHTS * 11 // 10 + batch * (context + nodes) * KV * 11 // 10


def test_nodes_and_sequences_are_the_most_that_fit():
    for total in (11_500_000, 12_345_678, 80_000_000):
        memory = Memory(total_bytes=total, weight_bytes=11_000_000, kv_bytes=1100)
        for context in (64, 256, 4096):
            for batch in (1, 3, 16):
                nodes = memory.max_nodes(context, batch)
                assert taken_bytes(nodes, context, batch) <= total < taken_bytes(nodes + 1, context, batch)
            for nodes in (1, 9):
                count = memory.sequences(context, nodes)
                assert taken_bytes(nodes, context, count) <= total < taken_bytes(nodes, context, count + 1)


def test_a_plan_takes_no_larger_tree_than_fits():
    profile = with_memory(invented())
    free = plan(profile, 32).choice.tree.nodes
    assert free > 3
    for nodes in (1, 2, 3, free):
        limited = plan(profile, 32, memory_bytes=taken_bytes(nodes, 256, 1))
        assert limited.solution.max_nodes == nodes
        assert limited.choice.tree.nodes <= nodes
    assert limited.choice.tree == plan(profile, 32).choice.tree
    for total in (taken_bytes(0, 256, 1), 100):
        with pytest.raises(
            InfeasibleError,
            match=f"expected at least {taken_bytes(1, 256, 1)} bytes, for the weights and a sequence of 256 tokens",
        ):
            plan(profile, 32, memory_bytes=total)


def test_a_schedule_never_plans_what_does_not_fit():
    profile = with_memory(invented(conditions=FOUR_CONDITIONS))
    conditions = measured_points(profile, 0.0)
    batch, context = max(conditions, key=lambda item: item[0] * item[1])
    total = taken_bytes(3, context, batch)

    def too_large(schedule):
        """Return the places at which a segment's tree does not fit."""
        return [
            (size, length)
            for segment in (*schedule.over_contexts, *schedule.over_batch_sizes)
            for size in range(segment.batch_sizes[0], segment.batch_sizes[1] + 1)
            for length in {segment.context_tokens[0], segment.context_tokens[1]}
            if taken_bytes(segment.option.tree.nodes, length, size) > total
        ]

    limited = requested_schedule(profile, PlanRequest(max_nodes=8, max_depth=2, memory_bytes=total))
    assert too_large(limited) == []
    assert len(limited.plans) == len(conditions)
    assert {item.memory.total_bytes for item in limited.plans} == {total}
    cheap = invented(conditions=FOUR_CONDITIONS, verify=lambda nodes, *_: 1e-2 + 1e-6 * nodes)
    request = PlanRequest(max_nodes=8, max_depth=2)
    assert (
        too_large(requested_schedule(with_memory(cheap), request)) != []
    )  # without the limit a larger tree is planned
    assert too_large(requested_schedule(with_memory(cheap), replace(request, memory_bytes=total))) == []


def test_conditions_without_room_are_left_out():
    profile = with_memory(invented(conditions=FOUR_CONDITIONS))
    smallest = min(measured_points(profile, 0.0), key=lambda item: item[0] * item[1])
    total = taken_bytes(1, smallest[1], smallest[0])
    schedule = requested_schedule(profile, PlanRequest(max_nodes=32, memory_bytes=total))
    assert [(item.model.point.batch_size, item.context_tokens) for item in schedule.plans] == [smallest]
    with pytest.raises(InfeasibleError, match=r"One was measured and fits in memory: .*, or allow more memory"):
        tree_schedule(schedule, rule="sequoia", temperature=0.0, context_tokens=smallest[1])
    with pytest.raises(InfeasibleError, match=f"^memory_bytes: expected at least {total} bytes"):
        requested_schedule(profile, PlanRequest(max_nodes=32, memory_bytes=total - 2000))


def test_a_profile_without_the_models_memory_is_refused():
    with pytest.raises(InfeasibleError, match=r"^memory_bytes: expected a profile with the memory of weights"):
        device_memory(invented(), 10**9)


def test_command_prints_how_many_sequences_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_memory(invented()).save("profile.yaml")
    result = call("solve", "--memory", "15MB")
    assert result.exit_code == 0, result.output
    chosen = plan(with_memory(invented()), memory_bytes=15_000_000).choice.tree.nodes
    plain, with_tree = (4_000_000 // (1100 * (256 + nodes)) for nodes in (1, chosen))
    assert (
        f"0.015 GB hold {plain} sequences of 256 tokens, {with_tree} with {chosen} nodes in each step." in result.stdout
    )
    refused = call("solve", "--memory", "15")
    assert refused.exit_code == 2
    assert "expected a size such as 40GB" in refused.stderr


def test_other_drafters_have_to_fit_too():
    profile = with_memory(invented())
    drafters = (heads(profile), lookup(profile, [({"length": n, "ngram": 2}, n + 1, 1 + n / 4, 1e-4) for n in (2, 7)]))
    profile = replace(profile, drafters=drafters)
    for nodes in (3, 5, 32):
        request = PlanRequest(temperature=0.0, max_nodes=32, memory_bytes=taken_bytes(nodes, 256, 1))
        sizes = [item.option.max_nodes for item in drafter_choices(profile, request)[1:]]
        assert len(sizes) == 2
        assert max(sizes) <= nodes
    assert min(sizes) > 5


def test_a_schedule_takes_the_limit():
    profile = with_memory(invented(conditions=FOUR_CONDITIONS))
    total = taken_bytes(3, 1024, 4)
    limited = schedule(profile, 8, max_depth=2, memory_bytes=total)
    assert limited == requested_schedule(profile, PlanRequest(max_nodes=8, max_depth=2, memory_bytes=total))
    assert limited != schedule(profile, 8, max_depth=2)
