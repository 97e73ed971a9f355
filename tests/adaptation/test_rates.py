"""Tokens per step along texts: what one text says of itself and of all others, how sure that is, and what is forgotten."""

import math

import numpy as np
import pytest

from treeopt.adaptation import rates
from treeopt.adaptation.rates import BEGINNING_TOKENS, CHANGED, SettingRate, Sums
from treeopt.adaptation.texts import STRETCHES
from treeopt.runtime.drafters.lookup_replay import Walked


def stretches(rate, count, seed=0, tokens=70):
    """Return stretches whose steps are drawn one by one, a token more with a fixed probability."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        lengths = np.minimum(rng.geometric(1 / rate, size=tokens), 9)
        steps = int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
        found.append(Walked(int(lengths[:steps].sum()), steps, steps))
    return found


def sums(found):
    total = Sums()
    for each in found:
        total.add(each)
    return total


def of(found, known=1.5):
    rate = SettingRate(known)
    for each in found:
        rate.add(each)
    return rate


def along(rate, texts, seed=0):
    """Walk along texts of 210 tokens at some rates, and return by how much each was off."""
    off = []
    for number, each in enumerate(texts):
        for stretch in stretches(each, 3, seed + number):
            rate.add(stretch)
        off.append(rate.end_stretch())
        rate.end_text()
    return off


def steps_per_token(found):
    return sum(each.steps for each in found) / sum(each.tokens for each in found)


def test_it_begins_with_what_was_measured_and_comes_to_what_is_walked():
    assert SettingRate(1.7).this_text.tokens_per_step == pytest.approx(1.7)
    assert SettingRate(1.7).all_texts.noise == pytest.approx(rates.KNOWN_SD)
    assert of(stretches(2.0, 40), known=5.0).this_text.tokens_per_step == pytest.approx(2.0, rel=0.1)


def test_the_noise_is_that_of_repeated_texts():
    found = [sums(stretches(1.5, 12, seed)).rate for seed in range(60)]
    spread = np.std([math.log(each.tokens_per_step) for each in found])
    assert 0.7 * spread < np.mean([each.noise for each in found]) < 2.5 * spread


def test_a_text_that_is_half_of_each_kind_in_long_stretches_is_known_less_well():
    mixed = [stretches(1.05 if number // 2 % 2 else 4.0, 1, number)[0] for number in range(24)]
    assert sums(mixed).rate.noise > 1.5 * sums(stretches(1.7, 24)).rate.noise


@pytest.mark.parametrize(("before", "after"), [(1.05, 7.0), (7.0, 1.05), (1.05, 3.0)])
def test_two_stretches_of_another_kind_are_another_passage_and_one_is_not(before, after):
    first, other = stretches(before, 12), stretches(after, 2, seed=9)
    once, twice = of([*first, other[0], *first[:3]]), of([*first, *other])
    assert twice._text.tokens == pytest.approx(sum(each.tokens for each in other), rel=0.15)
    assert once._text.tokens > 1.5 * twice._text.tokens
    nearer = abs(math.log(twice.this_text.tokens_per_step * steps_per_token(other)))
    assert nearer < abs(math.log(once.this_text.tokens_per_step * steps_per_token(other)))


def test_a_text_of_one_kind_is_hardly_ever_taken_for_another():
    walked = [of(stretches(rate, 40, seed))._text.tokens for seed in range(20) for rate in (1.2, 2.0, 5.0)]
    assert sum(each < 250 for each in walked) <= 1  # where it began anew not long ago


def test_one_text_that_is_unlike_moves_itself_much_and_all_others_little():
    rate = SettingRate(1.5)
    along(rate, [1.5] * 6)
    for stretch in stretches(4.0, 3, 50):
        rate.add(stretch)
    assert rate.this_text.tokens_per_step > 3
    assert abs(rate.end_stretch()) < CHANGED
    rate.end_text()
    assert rate.this_text.tokens_per_step == pytest.approx(rate.all_texts.tokens_per_step)
    assert 1.4 < rate.all_texts.tokens_per_step < 1.9


def kinds(generator, count):
    """Return tokens per step of texts that are spread around 2.5."""
    return np.maximum(1.05, np.exp(math.log(2.5) + rates.TEXTS_SD * generator.standard_normal(count)))


def test_of_all_texts_every_token_takes_as_many_steps_as_it_did_on_average():
    rate = SettingRate(2.0)
    rate.forget()  # so that what was measured counts for little
    drawn = kinds(np.random.default_rng(0), 40)
    along(rate, drawn)
    kept = 0.5 ** (np.arange(len(drawn))[::-1] / STRETCHES)
    texts = [steps_per_token(stretches(each, 3, number)) for number, each in enumerate(drawn)]
    expected = kept.sum() / (kept @ np.array(texts))
    assert rate.all_texts.tokens_per_step == pytest.approx(expected, rel=0.03)


def test_what_all_texts_come_to_is_known_as_well_as_they_differ():
    generator, found, noises = np.random.default_rng(1), [], []
    for _ in range(60):
        rate = SettingRate(2.5)
        rate.forget()
        along(rate, kinds(generator, 5), int(generator.integers(10**6)))
        found.append(math.log(rate.all_texts.tokens_per_step))
        noises.append(rate.all_texts.noise)
    assert 0.6 * np.std(found) < np.mean(noises) < 1.8 * np.std(found)


def test_of_a_text_that_begins_it_is_known_how_far_texts_are_spread():
    generator, off, noises = np.random.default_rng(3), [], []
    rate = SettingRate(2.5)
    for number, each in enumerate(kinds(generator, 60)):
        off.append(math.log(rate.this_text.tokens_per_step / each))
        noises.append(rate.this_text.noise)
        along(rate, [each], 10 * number)
    assert 0.7 * np.std(off) < np.mean(noises) < 1.5 * np.std(off)


def test_texts_that_are_all_unlike_soon_outweigh_those_before():
    rate = SettingRate(1.2)
    along(rate, [1.2] * 10)
    off = along(rate, [7.0] * 3, 70)
    assert max(off) > CHANGED
    assert rate.all_texts.tokens_per_step > 4


def test_what_is_to_be_forgotten_leaves_what_one_text_outweighs():
    rate = SettingRate(1.2)
    along(rate, [1.2] * 10)
    rate.forget()
    assert rate.this_text.noise > 1
    along(rate, [4.0], 70)
    assert rate.all_texts.tokens_per_step > 3


def test_a_text_of_hardly_any_tokens_says_nothing_of_the_others():
    rate = SettingRate(1.5)
    rate.add(Walked(20, 2, 2))
    assert rate.end_stretch() == 0.0
    assert rate.all_texts == SettingRate(1.5).all_texts


@pytest.mark.parametrize("before", [0, 2])
def test_the_beginning_of_a_text_says_nothing_of_what_comes_in_it_but_counts_among_all(before):
    rate = SettingRate(4.0)
    along(rate, [4.0] * before)
    first = rate.this_text
    half = BEGINNING_TOKENS // 2
    for _ in range(2):
        rate.add(Walked(half, half, 0))
        assert rate.this_text == first
    rate.add(Walked(BEGINNING_TOKENS, BEGINNING_TOKENS, 0))
    assert rate.this_text.tokens_per_step < 0.9 * first.tokens_per_step
    assert rate.this_text.drafted < first.drafted
    rate.end_stretch()
    every = rate.all_texts.tokens_per_step
    rate.end_text()
    other = SettingRate(4.0)
    along(other, [4.0] * before)
    other.add(Walked(4 * half, 4 * half, 0))
    other.end_stretch()
    assert every == pytest.approx(other.all_texts.tokens_per_step)
    rate.add(Walked(BEGINNING_TOKENS, BEGINNING_TOKENS, 0))  # of the next text, which has a beginning of its own
    assert rate.this_text.tokens_per_step == pytest.approx(every)
