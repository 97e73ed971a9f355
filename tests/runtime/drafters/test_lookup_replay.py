"""Replays of prompt lookup count what its drafter accepts step by step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treeopt.runtime.drafters import lookup_replay
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.lookup_replay import LookupReplay, ReplayedSteps
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting

SETTINGS = [PromptLookupSetting(*sizes) for sizes in ((1, 2), (2, 1), (3, 4), (2, 5))]


def count_steps(setting, prompt, text):
    """Return the drafter's steps along a sequence, without those that end after its end."""
    drafter = PromptLookupDrafter(setting.ngram, setting.length)
    drafter.begin(0, prompt)
    length, tokens, steps, drafting = len(prompt), 0, 0, 0
    while length + setting.length < len(text):
        (proposal,) = drafter.propose([0])
        drafted = proposal.tokens.tolist()[1:]
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == text[length + accepted]:
            accepted += 1
        step = text[length : length + accepted + 1]
        drafter.accept([0], [Step(tuple(range(accepted + 1)), step, None, None)])
        length += len(step)
        tokens, steps, drafting = tokens + len(step), steps + 1, drafting + bool(drafted)
    return ReplayedSteps(tokens, steps, drafting)


def replay_steps(settings, prompt, steps, *, every=1):
    """Return a replay, and the sums of its results, if steps commit these tokens and every few steps are replayed."""
    replay, before, results = LookupReplay(settings), list(prompt), []
    for number, tokens in enumerate(steps):
        replay.add(1, before, tokens)
        before += tokens
        if number % every == 0:
            results.append(replay.replay())
    results.append(replay.replay())
    return replay, [ReplayedSteps(*map(sum, zip(*each, strict=True))) for each in zip(*results, strict=True)]


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(tokens, st.lists(tokens, min_size=1, max_size=12), st.integers(1, 4))
def test_a_replay_counts_the_drafters_steps(prompt, steps, every):
    text = [*prompt, *(token for step in steps for token in step)]
    replay, results = replay_steps(SETTINGS, prompt, steps, every=every)
    assert results == [count_steps(setting, prompt, text) for setting in replay.settings]


def test_a_new_sequence_and_one_with_unseen_steps_start_again():
    replay, _ = replay_steps(SETTINGS, [9], [[1, 2, 3, 4]] * 8)
    for before in ([5, 6], [7] * 4):  # the steps before the second were not added
        new = [1, 2, 3, 4, 8, 9, 1, 3]
        replay.add(2, before, new)
        expected = [count_steps(setting, before, [*before, *new]) for setting in replay.settings]
        assert replay.replay() == expected


def test_only_the_last_tokens_since_a_replay_are_replayed(monkeypatch):
    monkeypatch.setattr(lookup_replay, "MAX_REPLAYED_TOKENS", 50)
    text = np.random.default_rng(0).integers(3, size=300).tolist()
    replay, results = replay_steps([PromptLookupSetting(2, 4)], [0], [text], every=9)
    assert 0 < results[0].tokens <= 50
    assert replay.pending_tokens == 0


def test_old_tokens_are_dropped_without_hiding_a_short_period(monkeypatch):
    monkeypatch.setattr(lookup_replay, "MAX_STORED_TOKENS", 256)
    monkeypatch.setattr(lookup_replay, "MIN_STORED_TOKENS", 128)
    text = [number % 50 for number in range(2000)]
    steps = [text[first : first + 20] for first in range(100, 2000, 20)]
    replay, (result,) = replay_steps([PromptLookupSetting(2, 7)], text[:100], steps)
    assert len(replay._tokens) <= 256
    assert result.tokens / result.steps > 7.5
    assert result.tokens > 1800
