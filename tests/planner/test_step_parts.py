"""Parts of an engine's steps, as far as the equations determine them."""

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


def determined(result):
    return {(item.part, item.size): item.seconds.value for item in result if item.seconds is not None}


def test_one_batch_size_determines_no_part():
    assert determined(step_parts(latencies([1], [0, 1, 3, 7]))) == {}


def test_matching_token_counts_determine_speculating_alone():
    result = determined(step_parts(latencies([1, 2, 4], [0, 1, 3, 7])))
    assert result == {("speculating", 0): pytest.approx(SPECULATING_S)}


def test_pass_times_of_the_engine_determine_all_parts():
    result = determined(step_parts(latencies([1, 4], [0, 1, 3], passes=True)))
    expected = {("speculating", 0): SPECULATING_S, ("draft", 1): DRAFT_S, ("draft", 4): 4 * DRAFT_S}
    expected |= {("step", 1): STEP_S, ("step", 4): 4 * STEP_S}
    expected |= {("verify", tokens): verify_s(tokens) for tokens in (1, 2, 4, 8, 16)}
    assert result == pytest.approx(expected)


def test_every_part_is_named_and_intervals_hold_the_value():
    noisy = latencies([1, 2, 4], [0, 1, 3, 7])
    result = step_parts(noisy)
    assert {item.part for item in result} == {"speculating", "step", "draft", "verify"}
    for item in result:
        assert item.seconds is None or item.seconds.low <= item.seconds.value <= item.seconds.high


def test_intervals_grow_with_the_samples_spread():
    def spread(share):
        cells = latencies([1, 2, 4], [0, 1, 3, 7])
        noisy = [
            ChainLatency(
                context_tokens=9,
                batch_size=item.batch_size,
                chains=tuple(
                    TimedChain(
                        length=chain.length,
                        steps=Timing([chain.steps.median_s * (1 + share * place) for place in range(-3, 4)]),
                    )
                    for chain in item.chains
                ),
            )
            for item in cells
        ]
        (result,) = [item.seconds for item in step_parts(noisy) if item.seconds is not None]
        return result.high - result.low

    assert spread(0.02) > 5 * spread(0.002) > 0
