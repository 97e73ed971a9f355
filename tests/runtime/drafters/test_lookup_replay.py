"""Prompt lookup walked along a text: what its drafter comes to step by step, whatever was decoded and told how."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treeopt.runtime.drafters import lookup_replay
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.lookup_replay import LookupReplay, ReplayedSteps
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting

SETTINGS = [PromptLookupSetting(*each) for each in ((1, 2), (2, 1), (3, 4), (2, 5))]


def stepped(setting, prompt, text):
    """Return what the drafter's steps come to, of those that cannot go on behind the text's end."""
    drafter = PromptLookupDrafter(setting.ngram, setting.length)
    drafter.begin(0, prompt)
    at, found = len(prompt), [0, 0, 0]
    while at + setting.length < len(text):
        (proposal,) = drafter.propose([0])
        drafted = proposal.tokens.tolist()[1:]
        right = 0
        while right < len(drafted) and drafted[right] == text[at + right]:
            right += 1
        step = text[at : at + right + 1]
        drafter.accept([0], [Step(tuple(range(right + 1)), step, None, None)])
        at += len(step)
        found = [found[0] + len(step), found[1] + 1, found[2] + bool(drafted)]
    return ReplayedSteps(*found)


def added(walks):
    return [ReplayedSteps(*(sum(each) for each in zip(*of, strict=True))) for of in zip(*walks, strict=True)]


def walked(settings, prompt, steps, *, every=1, text=1):
    """Return what is walked where steps commit some tokens each, and every so many are walked along."""
    found, before, walks = LookupReplay(settings), list(prompt), []
    for number, tokens in enumerate(steps):
        found.add(text, before, tokens)
        before += tokens
        if number % every == 0:
            walks.append(found.replay())
    walks.append(found.replay())
    return found, added(walks)


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(tokens, st.lists(tokens, min_size=1, max_size=12), st.integers(1, 4))
def test_it_comes_to_what_the_drafter_comes_to(prompt, steps, every):
    text = [*prompt, *(token for step in steps for token in step)]
    found, walks = walked(SETTINGS, prompt, steps, every=every)
    assert walks == [stepped(setting, prompt, text) for setting in found.settings]


def test_another_text_begins_anew_and_one_that_was_not_told_whole():
    repeated = [[1, 2, 3, 4]] * 8
    found, _ = walked(SETTINGS, [9], repeated)
    for text, before in ((2, [5, 6]), (2, [7] * 4)):  # the second one's steps before were not told
        found.add(text, before, [1, 2, 3, 4, 8, 9, 1, 3])
        whole = [*before, 1, 2, 3, 4, 8, 9, 1, 3]
        assert found.replay() == [stepped(setting, before, whole) for setting in found.settings]


def test_a_long_wait_is_walked_along_at_its_end(monkeypatch):
    monkeypatch.setattr(lookup_replay, "MAX_REPLAYED_TOKENS", 50)
    ordinary = np.random.default_rng(0).integers(3, size=300).tolist()
    found, walks = walked([PromptLookupSetting(2, 4)], [0], [ordinary], every=9)
    assert 0 < walks[0].tokens <= 50
    assert found.pending_tokens == 0


def test_what_is_remembered_of_a_long_text_is_bounded(monkeypatch):
    """100,000 tokens; the text itself belongs to whoever decodes."""
    monkeypatch.setattr(lookup_replay, "MAX_STORED_TOKENS", 1024)
    monkeypatch.setattr(lookup_replay, "MIN_STORED_TOKENS", 512)
    text = np.random.default_rng(0).integers(5000, size=100_000).tolist()
    found = LookupReplay([PromptLookupSetting(2, 2), PromptLookupSetting(1, 4)])

    class Behind(list):
        def __len__(self):
            return self.told

    before, sizes, steps = Behind([text[0]]), [], 0
    before.told = 1
    tracemalloc.start()
    for first in range(1, 100_000, 250):
        found.add(1, before, text[first : first + 250])
        before.told += len(text[first : first + 250])
        steps += found.replay()[0].steps
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(found._tokens) <= 1024
    assert max(sizes[200:]) < 1.2 * max(sizes[20:200])
    assert steps > 90_000


def test_the_end_of_a_long_text_is_looked_up_as_if_it_were_the_whole(monkeypatch):
    """A period shorter than what is remembered is found again behind every cut."""
    monkeypatch.setattr(lookup_replay, "MAX_STORED_TOKENS", 256)
    monkeypatch.setattr(lookup_replay, "MIN_STORED_TOKENS", 128)
    setting = PromptLookupSetting(2, 7)
    text = [number % 50 for number in range(2000)]
    _, (found,) = walked([setting], text[:100], [text[at : at + 20] for at in range(100, 2000, 20)])
    assert found.tokens / found.steps > 7.5
    assert found.tokens > 1800
