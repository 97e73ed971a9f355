"""Near-ties and faults of outputs, in a language of which every log-probability is known."""

import math

import pytest

from treeopt.profiler.bench.output_divergence import Output, near_tie_nats, output_divergence
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED

PROMPT = "once"
A_THEN = {"": {" a": 0.9}}


def compare(after, plain, other, plain_tokens=9, other_tokens=9):
    """Compare two outputs; `after` has the distribution of the next token after the prompt and a text."""

    def next_logprobs(text):
        assert text.startswith(PROMPT)
        distribution = after.get(text.removeprefix(PROMPT), {"?": 1.0})
        return {token: math.log(probability) for token, probability in distribution.items()}

    outputs = Output(plain, plain_tokens), Output(other, other_tokens)
    return output_divergence(7, PROMPT, *outputs, next_logprobs if after is not None else None, 0.05)


@pytest.mark.parametrize(
    ("distribution", "verdict", "at_least", "gap"),
    [
        ({"b": 0.5, "c": 0.49}, NEAR_TIE, False, math.log(0.5 / 0.49)),
        ({"b": 0.5, "c": 0.4}, FAULT, False, math.log(0.5 / 0.4)),
        ({"b": 0.5, "c": 1e-9}, FAULT, False, math.log(0.5 / 1e-9)),
        ({"b": 0.5, "d": 0.1}, FAULT, True, math.log(5)),  # the other token is below the last one reported
        ({"b": 0.5, "d": 0.49}, UNCHECKED, True, math.log(0.5 / 0.49)),
        ({"b": 0.1, "c": 0.9}, UNCHECKED, False, None),  # plain decoding does not take its likeliest token
    ],
)
def test_gap_to_the_other_token_decides(distribution, verdict, at_least, gap):
    divergence = compare({" a": distribution, **A_THEN}, " ab", " ac")
    assert (divergence.verdict, divergence.prompt, divergence.position) == (verdict, 7, 2)
    assert divergence.at_least == at_least
    assert divergence.gap == (gap if gap is None else pytest.approx(gap))


def test_words_that_start_alike_are_compared_where_their_tokens_start():
    """After " foo" the letter l is unlikely, but the tokens " foo" and " fool" are equally likely."""
    after = {"": {" foo": 0.4, " fool": 0.39}, " foo": {" is": 0.9, "l": 0.0001}}
    divergence = compare(after, " foo is", " fool is")
    assert (divergence.verdict, divergence.position) == (NEAR_TIE, 4)
    after[""][" fool"] = 0.001  # negative control
    assert compare(after, " foo is", " fool is").verdict == FAULT


def test_places_where_no_token_starts_are_skipped():
    after = {"": {" ab": 0.9}, " ab": {"c": 0.5, "d": 0.49}}
    assert compare(after, " abc", " abd").verdict == NEAR_TIE
    after = {"": {" fo": 0.9}, " fo": {"ot": 0.6, "x": 0.01}}
    assert compare(after, " foot", " fox").verdict == FAULT


def test_half_a_character_is_no_fault():
    assert compare({" a": {"b": 0.5, "\ufffd": 0.1}, **A_THEN}, " ab", " aé").verdict == UNCHECKED


def test_text_that_ends_early_is_a_fault_if_it_has_fewer_tokens():
    assert compare({}, "ab", "a", 9, 8).verdict == FAULT
    assert compare({}, "ab", "a").verdict == UNCHECKED  # one may withhold half a character


def test_texts_are_unchecked_without_log_probabilities():
    divergence = compare(None, "ab", "ac", 2, 2)
    assert (divergence.verdict, divergence.gap, divergence.plain, divergence.other) == (UNCHECKED, None, "b", "c")


def test_coarser_dtypes_have_wider_near_ties():
    assert near_tie_nats("float32") < 1e-4 < near_tie_nats("float16") < near_tie_nats("bfloat16") < 1
    assert near_tie_nats(None) == near_tie_nats("float16")
