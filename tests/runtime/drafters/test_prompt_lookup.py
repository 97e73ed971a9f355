"""Prompt lookup: against a scan of the whole text, and decoded with."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.decoded import PROMPT, accepted, begun, joined, proposed
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

REPEATS = [3, 14, 15, 9, 3, 14, 15, 9, 3, 14]


def scanned(text, max_ngram, length):
    """Return the proposals of a scan back from the text's end."""
    for ngram in range(min(max_ngram, len(text)), 0, -1):
        for end in range(len(text) - 1, ngram - 1, -1):
            if text[end - ngram : end] == text[-ngram:]:
                period = len(text) - end
                return [text[end + place % period] for place in range(length)]
    return []


def proposals(drafter):
    proposal = proposed(drafter)
    assert proposal.tree == chain(proposal.tree.nodes - 1)
    assert proposal.tokens.dtype == torch.int64
    assert len(proposal.tokens) == proposal.tree.nodes <= drafter.max_tokens
    return proposal.tokens.tolist()


texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(texts, st.lists(texts, max_size=6), st.integers(1, 4), st.integers(1, 6))
def test_the_proposal_is_that_of_a_scan_wherever_the_text_goes_on(prompt, steps, max_ngram, length):
    drafter, text = PromptLookupDrafter(max_ngram, length), list(prompt)
    begun(drafter, [9, *text])  # what an earlier text leaves must not matter
    begun(drafter, text)
    for step in [*steps, []]:
        assert proposals(drafter) == [text[-1], *scanned(text, max_ngram, length)]
        accepted(drafter, (0,), step)
        text += step


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4], []),
        ([1, 2, 5, 6, 1, 2, 7, 8, 1, 2], [7, 8, 1]),
        ([1, 2, 5, 6, 2, 7, 1, 2], [5, 6, 2]),
        ([4, 4], [4, 4, 4]),
        ([8, 1, 2, 1, 2], [1, 2, 1]),
    ],
    ids=["nothing twice", "the latest", "the longest", "a run", "a period"],
)
def test_examples(text, expected):
    drafter = PromptLookupDrafter(2, 3)
    begun(drafter, text)
    assert proposals(drafter) == [text[-1], *expected]


def test_what_an_earlier_text_said_is_forgotten():
    drafter = PromptLookupDrafter(2, 3)
    begun(drafter, [1, 2, 5, 6, 7])
    begun(drafter, [4, 3, 8, 9, 1, 2])
    assert proposals(drafter) == [2]


def test_a_look_up_takes_as_many_questions_in_a_long_text_as_in_a_short_one():
    class SettingRequest(dict):
        asked = 0

        def __contains__(self, key):
            self.asked += 1
            return super().__contains__(key)

    def questions(repeats):
        drafter = PromptLookupDrafter(3, 4)
        begun(drafter, [*range(50)] * repeats)
        text = drafter._sequences[0]
        text.ends = SettingRequest(text.ends)
        proposed(drafter)
        accepted(drafter, (0,), [77])
        proposed(drafter)
        return text.ends.asked, len(text.ends)

    assert questions(1000)[0] == questions(2)[0] <= 6
    assert questions(1000)[1] <= 3 * 51


class TestTemperatureZero:
    @pytest.mark.parametrize("setting", PROMPT_LOOKUP_SETTINGS, ids=str)
    def test_the_text_is_that_of_plain_decoding(self, target, setting, greedy_text):
        drafter = PromptLookupDrafter(setting.ngram, setting.length)
        decoder = Decoder(target, drafter, temperature=0.0)
        for prompt in (PROMPT, [1], REPEATS):
            steps = list(decoder.stream(prompt, 30))
            assert joined(steps) == greedy_text(target, prompt, 30)
            assert all(1 <= len(step) <= setting.length + 1 for step in steps)

    def test_the_bundled_target(self, bundled_pair, bundled_texts):
        decoder = Decoder(bundled_pair.target, PromptLookupDrafter(4, 4), temperature=0.0)
        steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_texts]
        assert [joined(each) for each in steps] == [text[:50] for _, text in bundled_texts]
        assert sum(map(len, steps)) < 150 / 1.5


@pytest.mark.parametrize(("ngram", "length"), [(0, 1), (1, 0)])
def test_a_setting_out_of_range(ngram, length):
    for make in (PromptLookupSetting, PromptLookupDrafter):
        with pytest.raises(InvalidValueError, match=r"(ngram|length): expected at least 1. Got 0"):
            make(ngram, length)
