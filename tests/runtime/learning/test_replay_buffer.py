"""The replay buffer contains the rejected positions, and the target's logits after each of them."""

import pytest
import torch

from tests.support.decoded import PROMPT
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import StepEvent
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.learning.replay_buffer import ReplayBuffer, rejected_positions
from treeopt.trees import chain, k_ary

TREE = k_ary(2, 2)  # 0; 1 2; 3 4 below 1, 5 6 below 2


def step_event(path, tokens=(5, 6), tree=TREE, *, sequence=1, truncated=False, logits=None):
    committed = [10 + node for node in path[1:]] + [9]
    logits = torch.arange(tree.nodes * 11.0).view(tree.nodes, 11) if logits is None else logits
    step = Step(tuple(path), committed, logits, None, truncated)
    return StepEvent(
        sequence, list(tokens), Proposal(tree, torch.tensor([tokens[-1], *range(11, 10 + tree.nodes)])), step
    )


@pytest.mark.parametrize(
    ("path", "truncated", "expected"),
    [
        ((0,), False, [(0, 0)]),
        ((0, 1), False, [(1, 1)]),
        ((0, 2), False, [(0, 0), (1, 2)]),  # the second child was accepted, the first was not
        ((0, 1, 3), False, []),
        ((0, 1, 4), False, [(1, 1)]),
        ((0, 2, 5), False, [(0, 0)]),
        ((0, 2), True, [(0, 0)]),  # the children of 2 were not verified
        ((0,), True, []),
    ],
)
def test_rejected_positions(path, truncated, expected):
    assert list(rejected_positions(step_event(path, truncated=truncated))) == expected


def test_leaves_are_not_rejected():
    assert not list(rejected_positions(step_event((0,), tree=chain(0))))


@pytest.mark.parametrize("window_tokens", [2, 24, 64])
def test_logits_equal_fresh_passes_up_to_each_position(target, draft, logits_after, window_tokens):
    buffer, text = ReplayBuffer(window_tokens), list(PROMPT)
    text += Decoder(target, draft, TREE, temperature=0.9, seed=2, on_step=buffer.add).generate(PROMPT, 50)
    windows = buffer.take()
    assert buffer.positions == 0
    assert buffer.take() == []
    positions = []
    for window in windows:
        assert window.tokens == text[window.first : window.first + len(window.tokens)]
        assert len(window.tokens) <= window_tokens
        assert window.rows[-1] == len(window.tokens) - 1
        for row, logits in zip(window.rows, window.logits, strict=True):
            position = window.first + row
            positions.append(position)
            torch.testing.assert_close(logits, logits_after(target, text[: position + 1]), rtol=1e-3, atol=1e-3)
    assert len(positions) > 10
    assert positions == sorted(set(positions))
    if window_tokens == 64:
        assert len(windows) == 1


def test_logits_are_copies():
    buffer, logits = ReplayBuffer(8), torch.zeros(7, 11)
    buffer.add(step_event((0,), logits=logits))
    logits.fill_(1.0)
    (window,) = buffer.take()
    assert window.logits[0].sum() == 0


def test_sequences_and_restarts_have_separate_windows():
    buffer = ReplayBuffer(64)
    for sequence, tokens in ((1, (5, 6)), (2, (7, 8)), (1, (5, 6, 9)), (1, (3, 4)), (2, (7, 9, 9, 9))):
        buffer.add(step_event((0,), tokens, sequence=sequence))
    windows = sorted((window.tokens, window.rows) for window in buffer.take())
    assert windows == [([3, 4], [1]), ([5, 6, 9], [1, 2]), ([7, 8], [1]), ([7, 9, 9, 9], [3])]


def test_memory_is_limited_by_positions_and_windows():
    buffer, most_tokens = ReplayBuffer(16), 0
    text = list(range(30_000))
    for end in range(1, 30_001, 97):
        buffer.add(step_event((0,), text[max(0, end - 200) : end], sequence=end % 3))
        windows = [*buffer._closed, *buffer._open.values()]
        most_tokens = max(most_tokens, sum(len(window.tokens) for window in windows))
        assert sum(len(window.logits) for window in windows) == buffer.positions
        if buffer.positions >= 8:
            buffer.take()
    assert 0 < most_tokens <= 8 * 16
