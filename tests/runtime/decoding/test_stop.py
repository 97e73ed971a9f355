"""Stop sequences and end tokens; that they end the sequences of every drafter is tested in tests/contracts."""

import numpy as np
import pytest

from tests.support.decoded import PROMPT, joined, with_end
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder
from treeopt.texts.stop import StoppingCriteria
from treeopt.trees import chain, k_ary

LONG = 40


@pytest.fixture(scope="session")
def expected(target, greedy_text):
    return greedy_text(target, PROMPT, LONG)


def first_end(tokens, sequences):
    """Return the number of tokens up to the end of the first stop sequence, the slow way."""
    for length in range(1, len(tokens) + 1):
        if any(tokens[:length][-len(stop) :] == list(stop) for stop in sequences if len(stop) <= length):
            return length
    return len(tokens)


def test_criteria_find_the_first_sequence_across_steps():
    generator = np.random.default_rng(0)
    for _ in range(300):
        tokens = generator.integers(3, size=30).tolist()
        sequences = [generator.integers(3, size=size).tolist() for size in generator.integers(1, 6, size=2)]
        criteria, count = StoppingCriteria(len(tokens), sequences, vocabulary=3), 0
        while not criteria.reached:
            count += criteria.count(tokens[count : count + int(generator.integers(1, 7))])
        assert count == first_end(tokens, sequences)


def test_the_first_of_several_end_tokens_counts(target, draft, expected):
    ends = sorted(set(expected))[:3]
    decoder = Decoder(with_end(target, *ends), draft, k_ary(2, 3), temperature=0.0)
    assert list(decoder.generate(PROMPT, LONG)) == expected[: min(map(expected.index, ends)) + 1]


def test_end_tokens_outside_the_vocabulary_are_ignored(target, expected):
    decoder = Decoder(with_end(target, -1, expected[5], 23), None, temperature=0.0)
    assert list(decoder.generate(PROMPT, LONG)) == expected[: expected.index(expected[5]) + 1]


def test_a_sequence_within_and_across_steps_ends_decoding(target, expected):
    decoder = Decoder(target, target, chain(4), temperature=0.0)  # five tokens per step
    for start in range(8):
        stop = expected[start : start + 4]
        steps = decoder.stream(PROMPT, LONG, stop=[stop])
        assert joined(steps) == expected[: first_end(expected, [stop])]
        assert next(steps, None) is None


def test_the_prompt_is_not_searched(target, draft, expected):
    decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0)
    for stop in (PROMPT, [*PROMPT[-2:], *expected[:2]]):
        assert list(decoder.generate(PROMPT, LONG, stop=[stop])) == expected[: first_end(expected, [stop])]
    unused = next(token for token in range(23) if token not in expected)
    with_end_in_prompt = Decoder(with_end(target, unused), draft, chain(2), temperature=0.0)
    assert len(list(with_end_in_prompt.generate([unused, *PROMPT, unused], 5))) >= 1


def test_a_new_sequence_starts_the_search_again(target, draft, expected):
    decoder = Decoder(target, draft, chain(2), temperature=0.0)
    stop = [expected[2], expected[0]]
    for _ in range(2):
        assert list(decoder.generate(PROMPT, 3, stop=[stop])) == expected[:3]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ([[1], []], r"stop: expected sequences of one or more tokens from 0 to 22. Got \[\]"),
        ([[23]], r"stop: expected .* from 0 to 22. Got \[23\]"),
        ([[1, -1]], r"stop: expected .* from 0 to 22. Got \[1, -1\]"),
    ],
)
def test_invalid_sequences_are_refused_before_anything_runs(target, draft, stop, reason, monkeypatch):
    decoder = Decoder(target, draft, chain(2))
    monkeypatch.setattr(decoder, "start", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(InvalidValueError, match=reason):
        decoder.generate(PROMPT, 5, stop=stop)
