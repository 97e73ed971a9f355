"""A text ends with the first of the sequences that were asked to end it, however the steps fall."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support.decoded import PROMPT, TREES, joined, with_end
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.texts.stop import StoppingCriteria
from treeopt.trees import chain, k_ary

LONG = 40


@pytest.fixture(scope="session")
def expected(target, greedy_text):
    return greedy_text(target, PROMPT, LONG)


def first_end(text, sequences):
    """Return how many tokens of a text there are up to the end of the first sequence, the slow way."""
    for length in range(1, len(text) + 1):
        if any(text[:length][-len(each) :] == list(each) for each in sequences if len(each) <= length):
            return length
    return len(text)


class TestEndTokens:
    @pytest.mark.parametrize("tree", [chain(0), chain(4), k_ary(2, 3)])
    def test_the_end_token_stops_the_text(self, target, tree, expected):
        for end in set(expected):
            decoder = Decoder(with_end(target, end), target, tree, temperature=0.0)
            assert list(decoder.generate(PROMPT, 40)) == expected[: expected.index(end) + 1]

    def test_the_first_of_several_end_tokens_counts(self, target, draft, expected):
        ends = sorted(set(expected))[:3]
        decoder = Decoder(with_end(target, *ends), draft, k_ary(2, 3), temperature=0.0)
        wanted = expected[: min(expected.index(end) for end in ends) + 1]
        assert list(decoder.generate(PROMPT, LONG)) == wanted

    def test_an_end_token_of_the_prompt_does_not_stop_the_text(self, target, draft, expected):
        unused = next(token for token in range(23) if token not in expected)
        prompt = [unused, *PROMPT, unused]
        decoder = Decoder(with_end(target, unused), draft, chain(2), temperature=0.0)
        assert len(list(decoder.generate(prompt, 5))) >= 1


class TestStopSequences:
    @pytest.mark.parametrize("length", [1, 3, 9])
    @pytest.mark.parametrize("tree", [TREES["chain of 4"], TREES["wide, then narrow"]])
    def test_the_text_ends_with_the_sequence(self, target, expected, tree, length):
        decoder = Decoder(target, target, tree, temperature=0.0)
        for start in range(0, LONG - length, 3):
            stop = expected[start : start + length]
            text = list(decoder.generate(PROMPT, LONG, stop=[stop]))
            assert text == expected[: first_end(expected, [stop])]
            assert text[-length:] == stop

    def test_a_sequence_may_span_steps(self, target, expected):
        decoder = Decoder(target, target, chain(4), temperature=0.0)  # five tokens a step
        steps = list(decoder.stream(PROMPT, LONG, stop=[expected[3:7]]))
        assert joined(steps) == expected[: first_end(expected, [expected[3:7]])]
        assert len(steps) >= 2

    def test_the_first_of_several_sequences_counts(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0)
        stops = [expected[20:22], expected[9:14], expected[30:31]]
        assert list(decoder.generate(PROMPT, LONG, stop=stops)) == expected[: first_end(expected, stops)]

    def test_a_sequence_that_does_not_come_changes_nothing(self, target, draft, expected):
        pairs = set(pairwise(expected))
        absent = next([a, b] for a in range(23) for b in range(23) if (a, b) not in pairs)
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0)
        assert list(decoder.generate(PROMPT, LONG, stop=[absent])) == expected

    def test_neither_the_prompt_nor_its_end_with_new_tokens_is_looked_at(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0)
        astride = [*PROMPT[-2:], *expected[:2]]
        for stop in (PROMPT, astride):
            assert list(decoder.generate(PROMPT, LONG, stop=[stop])) == expected[: first_end(expected, [stop])]

    def test_the_next_text_does_not_continue_a_sequence_of_the_last(self, target, draft, expected):
        decoder = Decoder(target, draft, chain(2), temperature=0.0)
        stop = [expected[2], expected[0]]
        assert list(decoder.generate(PROMPT, 3, stop=[stop])) == expected[:3]
        assert list(decoder.generate(PROMPT, 3, stop=[stop])) == expected[:3]

    def test_no_more_is_decoded_than_the_step_in_which_it_ends(self, target, draft, expected):
        decoder = Decoder(target, draft, chain(4), temperature=0.0)
        steps = decoder.stream(PROMPT, LONG, stop=[expected[6:7]])
        length = first_end(expected, [expected[6:7]])
        assert joined(steps) == expected[:length]
        assert next(steps, None) is None

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            ([[]], r"stop: expected sequences of one or more tokens from 0 to 22. Got \[\]"),
            ([[1], []], r"stop: expected sequences of one or more tokens"),
            ([[23]], r"stop: expected .* from 0 to 22. Got \[23\]"),
            ([[1, -1]], r"stop: expected .* from 0 to 22. Got \[1, -1\]"),
        ],
    )
    def test_sequences_that_cannot_come(self, target, draft, stop, reason, monkeypatch):
        decoder = Decoder(target, draft, chain(2))
        ran = []
        monkeypatch.setattr(decoder, "start", ran.append)
        with pytest.raises(InvalidValueError, match=reason):
            decoder.generate(PROMPT, 5, stop=stop)
        assert not ran


def test_stop_sequences_are_found_across_steps():
    generator = np.random.default_rng(0)
    for _ in range(300):
        tokens = generator.integers(3, size=30).tolist()
        sequences = [generator.integers(3, size=size).tolist() for size in generator.integers(1, 6, size=2)]
        criteria, count = StoppingCriteria(len(tokens), sequences, vocabulary=3), 0
        while not criteria.reached:
            count += criteria.count(tokens[count : count + int(generator.integers(1, 7))])
        assert count == first_end(tokens, sequences)
