"""Near-ties and faults of texts, told by a language of which every log-probability is known."""

import math

import pytest

from treeopt.profiler.bench.text_divergence import Continuation, near_tie_nats, text_divergence
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED

PROMPT = "once"
TOLERANCE = 0.05


class Language:
    """Next tokens by text: `after["ab"]` are those after the prompt and "ab"."""

    def __init__(self, after):
        self.after, self.asked = after, []

    def __call__(self, text):
        self.asked.append(text)
        assert text.startswith(PROMPT)
        told = self.after.get(text.removeprefix(PROMPT), {"?": 1.0})
        return {token: math.log(share) for token, share in told.items()}


def found(after, plain, other, plain_tokens=9, other_tokens=9):
    return text_divergence(
        7, PROMPT, Continuation(plain, plain_tokens), Continuation(other, other_tokens), Language(after), TOLERANCE
    )


def test_two_tokens_that_are_equally_likely_are_a_near_tie():
    told = found({" a": {"b": 0.5, "c": 0.49}, "": {" a": 0.9}}, " ab", " ac")
    assert (told.verdict, told.prompt, told.place) == (NEAR_TIE, 7, 2)
    assert told.gap == pytest.approx(math.log(0.5 / 0.49))
    assert not told.at_least


@pytest.mark.parametrize("share", [0.4, 1e-9])
def test_an_unlikely_token_is_a_fault(share):
    told = found({" a": {"b": 0.5, "c": share}, "": {" a": 0.9}}, " ab", " ac")
    assert (told.verdict, told.at_least) == (FAULT, False)
    assert told.gap == pytest.approx(math.log(0.5 / share))


def test_a_token_that_is_not_told_is_further_than_the_last():
    told = found({" a": {"b": 0.5, "d": 0.1}, "": {" a": 0.9}}, " ab", " ac")
    assert (told.verdict, told.at_least) == (FAULT, True)
    assert told.gap == pytest.approx(math.log(5))


def test_where_the_last_that_is_told_is_near_nothing_is_known_of_others():
    assert found({" a": {"b": 0.5, "d": 0.49}, "": {" a": 0.9}}, " ab", " ac").verdict == UNCHECKED


def test_a_word_that_begins_like_the_other_is_told_apart_where_its_token_begins():
    """After " foo" the letter l is unlikely, but the tokens " foo" and " fool" are equally likely."""
    after = {"": {" foo": 0.4, " fool": 0.39}, " foo": {" is": 0.9, "l": 0.0001}}
    told = found(after, " foo is", " fool is")
    assert (told.verdict, told.place) == (NEAR_TIE, 4)
    after[""][" fool"] = 0.001  # negative control
    assert found(after, " foo is", " fool is").verdict == FAULT


def test_a_wrong_token_in_the_middle_of_a_word_is_a_fault():
    after = {"": {" fo": 0.9}, " fo": {"ot": 0.6, "x": 0.01}}
    assert found(after, " foot", " fox").verdict == FAULT


def test_a_place_that_is_no_start_of_a_token_is_passed_over():
    """The engine writes " ab" as one token and then c; asked after half of it, it knows nothing."""
    after = {"": {" ab": 0.9}, " ab": {"c": 0.5, "d": 0.49}}
    assert found(after, " abc", " abd").verdict == NEAR_TIE


def test_plain_decoding_that_does_not_take_its_likeliest_token_is_no_reference():
    assert found({" a": {"b": 0.1, "c": 0.9}, "": {" a": 0.9}}, " ab", " ac").verdict == UNCHECKED


def test_half_a_character_accuses_nobody():
    assert found({" a": {"b": 0.5, "\ufffd": 0.1}, "": {" a": 0.9}}, " ab", " aé").verdict == UNCHECKED


def test_a_text_that_ends_too_early_is_a_fault():
    assert found({}, "ab", "a", 9, 8).verdict == FAULT
    assert found({}, "ab", "a").verdict == UNCHECKED  # as many tokens: one holds back half a character


def test_without_log_probabilities_nothing_is_checked():
    told = text_divergence(0, PROMPT, Continuation("ab", 2), Continuation("ac", 2), None, TOLERANCE)
    assert (told.verdict, told.gap, told.plain, told.other) == (UNCHECKED, None, "b", "c")


def test_coarser_formats_have_wider_near_ties():
    assert near_tie_nats("float32") < 1e-4 < near_tie_nats("float16") < near_tie_nats("bfloat16") < 1
    assert near_tie_nats(None) == near_tie_nats("float16")
