"""Parts of an engine's steps: those that follow from the equations are found, those that do not are not named."""

import pytest

from treeopt.planner.step_parts import step_parts
from treeopt.records.engine import ChainLatency, TimedChain
from treeopt.records.latency import Timing

SPECULATING_S, DRAFT_S, STEP_S = 0.5, 0.1, 0.2


def verify_s(tokens):
    return 1 + 0.03 * tokens + 0.001 * tokens**2


def step_s(batch, length):
    return (SPECULATING_S if length else 0) + STEP_S * batch + verify_s(batch * (length + 1)) + length * DRAFT_S * batch


def latencies(batches, lengths, *, seconds=step_s, passes=False):
    return [
        ChainLatency(
            context_tokens=9,
            batch_size=batch,
            chains=tuple(
                TimedChain(
                    length=length,
                    steps=Timing([seconds(batch, length)] * 5),
                    verify=Timing([verify_s(batch * (length + 1))] * 5) if passes else None,
                    draft=Timing([length * DRAFT_S * batch] * 5) if passes and length else None,
                )
                for length in lengths
            ),
        )
        for batch in batches
    ]


def told_apart(found):
    return {(each.part, each.size): each.seconds.value for each in found if each.seconds is not None}


def test_one_batch_size_tells_no_part_from_another():
    assert told_apart(step_parts(latencies([1], [0, 1, 3, 7]))) == {}


def test_matching_token_counts_tell_what_speculating_costs_and_nothing_else():
    found = told_apart(step_parts(latencies([1, 2, 4], [0, 1, 3, 7])))
    assert found == {("speculating", 0): pytest.approx(SPECULATING_S)}


def test_what_is_not_told_apart_could_be_otherwise():
    """Verifying that is slower by the token, and drafting that is faster by as much, make the very same steps."""

    def other(batch, length):
        slower = 0.01 * batch * (length + 1)
        return step_s(batch, length) + slower - 0.01 * batch - length * 0.01 * batch

    same, others = (latencies([1, 2, 4], [0, 1, 3, 7], seconds=each) for each in (step_s, other))
    for one, another in zip(same, others, strict=True):
        assert [each.steps.median_s for each in one.chains] == pytest.approx(
            [each.steps.median_s for each in another.chains]
        )


def test_pass_times_of_the_engine_tell_all_parts_apart():
    found = told_apart(step_parts(latencies([1, 4], [0, 1, 3], passes=True)))
    expected = {("speculating", 0): SPECULATING_S, ("draft", 1): DRAFT_S, ("draft", 4): 4 * DRAFT_S}
    expected |= {("step", 1): STEP_S, ("step", 4): 4 * STEP_S}
    expected |= {("verify", tokens): verify_s(tokens) for tokens in (1, 2, 4, 8, 16)}
    assert found == pytest.approx(expected)


def test_every_part_is_named_and_intervals_hold_the_value():
    noisy = latencies([1, 2, 4], [0, 1, 3, 7])
    found = step_parts(noisy)
    assert {each.part for each in found} == {"speculating", "step", "draft", "verify"}
    for each in found:
        assert each.seconds is None or each.seconds.low <= each.seconds.value <= each.seconds.high


def test_intervals_grow_with_the_samples_spread():
    def spread(share):
        def times(batch, length):
            return step_s(batch, length)

        cells = latencies([1, 2, 4], [0, 1, 3, 7], seconds=times)
        noisy = [
            ChainLatency(
                context_tokens=9,
                batch_size=each.batch_size,
                chains=tuple(
                    TimedChain(
                        length=chain.length,
                        steps=Timing([chain.steps.median_s * (1 + share * place) for place in range(-3, 4)]),
                    )
                    for chain in each.chains
                ),
            )
            for each in cells
        ]
        (found,) = [each.seconds for each in step_parts(noisy) if each.seconds is not None]
        return found.high - found.low

    assert spread(0.02) > 5 * spread(0.002) > 0
