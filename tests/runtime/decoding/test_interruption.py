"""A decoder has one text at a time; that interruptions leave no state is tested for every drafter in tests/contracts."""

import pytest

from tests.support.decoded import PROMPT, joined
from treeopt.errors import TreeoptError
from treeopt.runtime import Decoder
from treeopt.trees import chain, k_ary

OTHER_PROMPT = [7, 8, 9, 10, 7]


def decoder_of(models, tree):
    return Decoder(*models, tree, temperature=0.8)


def text_of(decoder, prompt=PROMPT, seed=5):
    return list(decoder.generate(prompt, 25, seed=seed))


@pytest.fixture
def models(target, draft):
    return target, draft


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_an_iterator_is_of_no_use_once_another_text_was_begun(models, taken):
    decoder = decoder_of(models, chain(2))
    stale = decoder.stream(PROMPT, 60)
    for _ in range(taken):
        next(stale)
    fresh = decoder.stream(OTHER_PROMPT, 60, seed=6)
    first = next(fresh)
    for _ in range(2):
        with pytest.raises((TreeoptError, StopIteration)) as raised:
            next(stale)
    assert raised.type is StopIteration  # the error comes once, then the iterator is at its end
    assert [*first, *joined(fresh)] == list(decoder_of(models, chain(2)).generate(OTHER_PROMPT, 60, seed=6))


def test_the_error_says_what_to_do(models):
    decoder = decoder_of(models, chain(2))
    stale = decoder.generate(PROMPT, 60)
    text_of(decoder)
    with pytest.raises(
        TreeoptError, match=r"generate: another sequence has begun on this decoder. Make a decoder for each"
    ):
        list(stale)


def test_two_decoders_share_models_but_nothing_else(models):
    first, second = (decoder_of(models, tree).generate(PROMPT, 25, seed=5) for tree in (chain(2), k_ary(2, 2)))
    texts = list(zip(first, second, strict=True))
    assert [a for a, _ in texts] == text_of(decoder_of(models, chain(2)))
    assert [b for _, b in texts] == text_of(decoder_of(models, k_ary(2, 2)))
