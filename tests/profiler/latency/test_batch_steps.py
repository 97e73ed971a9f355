"""Timed passes and steps of a batch: one pass over sequences of different lengths, until the room ends."""

import pytest

from treeopt.profiler.latency.passes import ROOM_TOKENS, DecodingSteps, ModelPasses
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.rules import get_rule
from treeopt.trees import chain, level_widths

CONTEXT = [3, 1, 4, 1, 5, 9, 2, 6] * 5


@pytest.fixture
def passes(target, monkeypatch):
    """Return the tokens and the length of every sequence, for each pass of the target."""
    passes, forward = [], target.forward

    def record(inputs, *arguments, **options):
        passes.append([(len(sequence.tokens), sequence.cache.length) for sequence in inputs])
        return forward(inputs, *arguments, **options)

    monkeypatch.setattr(target, "forward", record)
    return passes


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=str)
def test_timed_pass_feeds_all_sequences_at_different_lengths(target, passes, sampling):
    timer = ModelPasses(target, [*CONTEXT, *[0] * ROOM_TOKENS], 3, 8)
    verify, draft = timer.verify(5, sampling), timer.draft(2, sampling, get_rule("sequoia", lossy=False))
    for _ in range(20):
        verify()
        draft()
    assert [[tokens for tokens, _ in sequences] for sequences in passes] == [[5] * 3, [2] * 3] * 20
    lengths = [length for sequences in passes for _, length in sequences]
    assert len(CONTEXT) < min(lengths) <= max(lengths) <= len(CONTEXT) + ROOM_TOKENS
    assert sum(len({length for _, length in sequences}) > 1 for sequences in passes) > 30


def make_steps(target, draft, tree=None, **changes):
    decoder = Decoder(
        target,
        draft,
        tree or chain(0),
        temperature=0.0,
        max_nodes=16,
        max_sequence_tokens=len(CONTEXT) + ROOM_TOKENS,
        cuda_graphs=False,
        **changes,
    )
    return DecodingSteps(decoder, CONTEXT, 3)


def test_step_feeds_all_sequences_and_restarts_when_the_room_ends(target, draft, passes):
    steps = make_steps(target, draft)
    for count in range(150):
        tree = (level_widths([2, 2]), chain(4), chain(0))[count % 3]
        steps.prepare(tree)
        before = len(passes)
        steps.step()
        assert [tokens for tokens, _ in passes[-1]] == [tree.nodes] * 3
        assert len(passes) == before + 1
    lengths = [{length for _, length in sequences} for sequences in passes]
    assert all(len(distinct) > 1 for distinct in lengths[:3])  # prompts of different lengths
    restarts = sum(later < earlier for earlier, later in zip(map(max, lengths), map(max, lengths[1:]), strict=False))
    assert restarts >= 2
    assert max(map(max, lengths)) <= len(CONTEXT) + ROOM_TOKENS


def test_end_tokens_do_not_end_steps(make_model):
    target = make_model(seed=1, end_tokens=tuple(range(23)))
    steps = make_steps(target, make_model(seed=1))
    for _ in range(10):
        steps.prepare(chain(2))
        steps.step()
