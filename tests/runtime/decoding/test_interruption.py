"""A text that is given up, or broken off by an error in the middle of a step, leaves the decoder as good as new."""

import pytest

from tests.support.decoded import PROMPT, joined, random_tree
from treeopt.errors import TreeoptError
from treeopt.records.rules import RULES
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.step import Stepper
from treeopt.trees import chain, k_ary

TREES = {"chain": chain(3), "binary": k_ary(2, 2), "random": random_tree(1)}
all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
OTHER_PROMPT = [7, 8, 9, 10, 7]


def decoder_of(models, tree, *, rule="sequoia", temperature=0.8):
    return Decoder(*models, tree, rule=rule, temperature=temperature, lossy=True)


def text_of(decoder, prompt=PROMPT, seed=5):
    return list(decoder.generate(prompt, 25, seed=seed))


@pytest.fixture
def models(target, draft):
    return target, draft


@all_trees
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_that_is_given_up_leaves_no_state(models, tree, rule, temperature):
    kinds = {"rule": rule, "temperature": temperature}
    decoder, expected = decoder_of(models, tree, **kinds), text_of(decoder_of(models, tree, **kinds))
    for taken in (0, 1, 12):
        given_up = decoder.generate(OTHER_PROMPT, 30)
        assert len([next(given_up) for _ in range(taken)]) == taken
        del given_up
        assert text_of(decoder) == expected


@all_trees
@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_within_a_pass_leaves_no_state(models, tree, which, error, monkeypatch):
    expected, model = text_of(decoder_of(models, tree)), models[which == "draft"]
    decoder = decoder_of(models, tree)
    for calls_before in range(6):
        left = calls_before

        def broken_off(*arguments, forward=model.forward, **keywords):
            nonlocal left
            logits = forward(*arguments, **keywords)
            left -= 1
            if left < 0:
                raise error
            return logits

        with monkeypatch.context() as patched:
            patched.setattr(model, "forward", broken_off)
            with pytest.raises(error):
                list(decoder.generate(OTHER_PROMPT, 100))
        assert text_of(decoder) == expected


@pytest.mark.parametrize("which", ["target", "draft"])
def test_an_error_within_the_prompt_leaves_no_state(models, which, monkeypatch):
    decoder, expected = decoder_of(models, chain(2)), text_of(decoder_of(models, chain(2)))
    begun = decoder.generate(OTHER_PROMPT, 30)
    next(begun)
    with monkeypatch.context() as patched:
        patched.setattr(models[which == "draft"], "prefill", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoder.generate(OTHER_PROMPT, 30)
    with pytest.raises(TreeoptError, match="another text was begun"):
        list(begun)
    assert text_of(decoder) == expected


def test_an_error_while_verifying_leaves_no_state(models, monkeypatch):
    decoder, expected = decoder_of(models, k_ary(2, 2)), text_of(decoder_of(models, k_ary(2, 2)))
    for name in ("accept", "commit"):
        with monkeypatch.context() as patched:
            patched.setattr(Stepper, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                list(decoder.generate(OTHER_PROMPT, 30))
        assert text_of(decoder) == expected


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_an_iterator_is_of_no_use_once_another_text_was_begun(models, taken):
    decoder = decoder_of(models, chain(2))
    stale = decoder.steps(PROMPT, 60)
    for _ in range(taken):
        next(stale)
    fresh = decoder.steps(OTHER_PROMPT, 60, seed=6)
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
        TreeoptError, match=r"generate: another text was begun on this decoder. Make a decoder for each"
    ):
        list(stale)


def test_two_decoders_share_models_but_nothing_else(models):
    first, second = (decoder_of(models, tree).generate(PROMPT, 25, seed=5) for tree in (chain(2), k_ary(2, 2)))
    texts = list(zip(first, second, strict=True))
    assert [a for a, _ in texts] == text_of(decoder_of(models, chain(2)))
    assert [b for _, b in texts] == text_of(decoder_of(models, k_ary(2, 2)))
