"""Tokens per step along a text: what it forgets, how sure it is, and when it takes the text for another."""

import math

import numpy as np
import pytest

from treeopt.adaptation.rates import AgedRate
from treeopt.adaptation.replay import Walked


def stretches(rate, count, seed=0, tokens=70):
    """Return stretches whose steps are drawn one by one, a token more with a fixed probability."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        lengths = np.minimum(rng.geometric(1 / rate, size=tokens), 9)
        steps = int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
        found.append(Walked(int(lengths[:steps].sum()), steps, steps))
    return found


def of(found, known=1.5, half_life=384):
    rate = AgedRate(half_life, known)
    for each in found:
        rate.add(each)
    return rate


def test_it_begins_with_what_was_measured_and_comes_to_what_is_walked():
    assert AgedRate(100, 1.7).tokens_per_step == pytest.approx(1.7)
    assert AgedRate(100, 1.7).noise == math.inf
    assert of(stretches(2.0, 40), known=5.0).tokens_per_step == pytest.approx(2.0, rel=0.1)


def test_the_noise_is_that_of_repeated_texts():
    found = [of(stretches(1.5, 12, seed), half_life=10**6) for seed in range(60)]
    spread = np.std([math.log(each.tokens_per_step) for each in found])
    assert 0.7 * spread < np.mean([each.noise for each in found]) < 2.5 * spread


def test_a_text_that_is_half_of_each_kind_in_long_stretches_is_known_less_well():
    mixed = [stretches(1.05 if number // 2 % 2 else 4.0, 1, number)[0] for number in range(24)]
    assert of(mixed).noise > 1.5 * of(stretches(1.7, 24)).noise


@pytest.mark.parametrize(("before", "after"), [(1.05, 7.0), (7.0, 1.05), (1.05, 3.0)])
def test_two_stretches_of_another_kind_are_another_text_and_one_is_not(before, after):
    first = stretches(before, 12)
    other = stretches(after, 2, seed=9)
    once, twice = of([*first, other[0], *first[:3]]), of([*first, *other])
    changed = sum(each.tokens for each in other) / sum(each.steps for each in other)
    assert twice.tokens_per_step == pytest.approx(changed, rel=0.02)
    assert twice.walked == sum(each.tokens for each in other)
    assert once.walked == sum(each.tokens for each in [*first, other[0], *first[:3]])


def test_a_text_of_one_kind_is_hardly_ever_taken_for_another():
    walked = [of(stretches(rate, 40, seed)).walked for seed in range(20) for rate in (1.2, 2.0, 5.0)]
    assert sum(each < 2500 for each in walked) <= 1
