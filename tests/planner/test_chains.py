"""The fastest chain of every batch size, against every length tried by hand."""

import pytest

from tests.cli.invented import TABLE, draft_s, invented, verify_s
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, step_model
from treeopt.planner.segments import chain_schedule, fastest_length

CONDITIONS = [(256, batch) for batch in (1, 16, 64)]
CROWDED = {"verify": lambda n, c, b: verify_s(n, c, b) + 3e-3 * n * b}
"""A machine whose idle arithmetic is used up by a few sequences."""


def at(context: int) -> PlanRequest:
    return PlanRequest(context_tokens=context)


def by_hand(batch: int, verify) -> list[float]:
    """Return the speedup of every length from 0."""

    def seconds(curve, n):  # times lie on straight lines between batch sizes, and these curves are straight
        return curve(n, 256, batch)

    speedups, reach, tokens = [1.0], 1.0, 1.0
    for length in range(1, len(TABLE.p) + 1):
        reach *= TABLE.p[length - 1, 0]
        tokens += reach
        step_s = length * seconds(draft_s, 1) + seconds(verify, length + 1) + 2e-4
        speedups.append(tokens / step_s * seconds(verify, 1))
    return speedups


@pytest.mark.parametrize("batch", [1, 9, 16, 40])
@pytest.mark.parametrize("verify", [verify_s, CROWDED["verify"]])
def test_no_length_is_faster(batch, verify):
    model = step_model(invented(conditions=CONDITIONS, verify=verify), PlanRequest(batch_size=batch))
    speedups = by_hand(batch, verify)
    assert speedups[fastest_length(model)] == pytest.approx(max(speedups), rel=1e-9)


def test_a_limit_holds():
    model = step_model(invented())
    assert fastest_length(model) > 1
    assert fastest_length(model, max_length=1) == 1


def test_schedule_has_the_fastest_length_of_every_batch_size():
    profile = invented(conditions=CONDITIONS, **CROWDED)
    segments = chain_schedule(profile)
    expected = {batch: fastest_length(step_model(profile, PlanRequest(batch_size=batch))) for batch in range(1, 65)}
    result = {
        batch: segment.option.tree.max_depth
        for segment in segments
        for batch in range(segment.batch_sizes[0], segment.batch_sizes[1] + 1)
    }
    assert result == expected
    assert len({segment.option.tree.max_depth for segment in segments}) == len(segments) > 2
    assert segments[-1].option.tree.max_depth == 0
    assert segments[-1].option.kind == "plain"


@pytest.mark.parametrize("context", [256, 4096])
def test_schedule_holds_at_the_requested_context(context):
    def verify(nodes, tokens, batch):  # long sequences leave no arithmetic idle
        return verify_s(nodes, tokens, batch) + (3e-3 * nodes * batch if tokens > 1000 else 0.0)

    profile = invented(conditions=[(item, batch) for batch in (1, 8) for item in (256, 4096)], verify=verify)
    segments = chain_schedule(profile, at(context))
    ends = [
        fastest_length(step_model(profile, PlanRequest(context_tokens=context, batch_size=batch))) for batch in (1, 8)
    ]
    assert [segments[0].option.tree.max_depth, segments[-1].option.tree.max_depth] == ends
    assert {segment.option.tree.max_depth for segment in segments} != {
        segment.option.tree.max_depth for segment in chain_schedule(profile, at(4352 - context))
    }


def test_batch_sizes_that_were_measured_at_other_contexts_are_left_out():
    profile = invented(conditions=[(256, 1), (256, 4), (4096, 16)])
    for context, batch_sizes in ((None, (1, 4)), (256, (1, 4)), (4096, (16, 16))):
        segments = chain_schedule(profile, PlanRequest(context_tokens=context))
        assert (segments[0].batch_sizes[0], segments[-1].batch_sizes[1]) == batch_sizes
    with pytest.raises(InfeasibleError, match="context 9 tokens x batch 1 was not measured"):
        chain_schedule(profile, at(9))
