"""Prompt lookup, next to a scan of the whole sequence; that output stays the target's is tested in tests/contracts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.decoded import accepted, begun, joined, proposed
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PromptLookupSetting


def scan(text, max_ngram, length):
    """Return the draft of a scan back from the end."""
    for ngram in range(min(max_ngram, len(text)), 0, -1):
        for end in range(len(text) - 1, ngram - 1, -1):
            if text[end - ngram : end] == text[-ngram:]:
                period = len(text) - end
                return [text[end + index % period] for index in range(length)]
    return []


def draft_tokens(drafter):
    proposal = proposed(drafter)
    assert proposal.tree == chain(proposal.tree.nodes - 1)
    assert proposal.tokens.dtype == torch.int64
    assert len(proposal.tokens) == proposal.tree.nodes <= drafter.max_tokens
    return proposal.tokens.tolist()


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(sequences, st.lists(sequences, max_size=6), st.integers(1, 4), st.integers(1, 6))
def test_drafts_are_those_of_a_scan(prompt, steps, max_ngram, length):
    drafter, text = PromptLookupDrafter(max_ngram, length), list(prompt)
    begun(drafter, [9, *text])  # an earlier sequence must not matter
    begun(drafter, text)
    for step in [*steps, []]:
        assert draft_tokens(drafter) == [text[-1], *scan(text, max_ngram, length)]
        accepted(drafter, (0,), step)
        text += step


def test_the_number_of_look_ups_does_not_grow_with_the_sequence():
    class CountingDict(dict):
        look_ups = 0

        def get(self, *arguments):
            self.look_ups += 1
            return super().get(*arguments)

    def count_look_ups(repeats):
        drafter = PromptLookupDrafter(3, 4)
        begun(drafter, [*range(50)] * repeats)
        occurrences = drafter._sequences[0]._occurrences
        occurrences._ends = [CountingDict(ends) for ends in occurrences._ends]
        proposed(drafter)
        accepted(drafter, (0,), [77])
        proposed(drafter)
        assert sum(map(len, occurrences._ends)) <= 3 * 51 + 3
        return sum(ends.look_ups for ends in occurrences._ends)

    assert count_look_ups(300) == count_look_ups(2) == 3


def test_the_bundled_target_takes_few_steps(bundled_pair, bundled_outputs):
    decoder = Decoder(bundled_pair.target, PromptLookupDrafter(4, 4), temperature=0.0)
    steps = [list(decoder.stream(prompt, 50)) for prompt, _ in bundled_outputs]
    assert [joined(text) for text in steps] == [text[:50] for _, text in bundled_outputs]
    assert sum(map(len, steps)) < 150 / 1.5


@pytest.mark.parametrize(("ngram", "length"), [(0, 1), (1, 0)])
def test_a_setting_out_of_range_is_refused(ngram, length):
    for make in (PromptLookupSetting, PromptLookupDrafter):
        with pytest.raises(InvalidValueError, match=r"(ngram|length): expected at least 1. Got 0"):
            make(ngram, length)
