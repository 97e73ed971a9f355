"""How much texts differ with a sampling that was not measured: beside the distribution that they are drawn from."""

import numpy as np
import pytest

from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import log_odds, probability
from treeopt.adaptation.variation import TextVariation, Variation

KNOWN = np.array([[0.8, 0.4, 0.2]] * 3)


def text(p, tokens, generator):
    tried, accepted = np.zeros_like(KNOWN), np.zeros_like(KNOWN)
    tried[:, 0] = tokens / len(KNOWN)
    accepted[:, 0] = generator.binomial(tokens // len(KNOWN), p, size=len(KNOWN))
    return Outcomes(tried, accepted)


def decoded(variation, texts, sd, p, generator, tokens=150):
    for odds in log_odds(np.array(p)) + sd * generator.standard_normal(texts):
        variation.add(text(float(probability(odds)), tokens, generator), KNOWN)


@pytest.mark.parametrize("sd", [0.3, 0.6, 1.2])
@pytest.mark.parametrize("p", [0.8, 0.6])  # 0.6: all are off what was measured, which is no difference between them
def test_it_comes_to_be_that_of_the_distribution_whatever_was_measured_elsewhere(sd, p):
    variation, generator = TextVariation(Variation(0.9, 1.0)), np.random.default_rng(0)
    variation.forget()
    decoded(variation, 400, sd, p, generator)
    assert variation.now.sd == pytest.approx(sd, rel=0.2)
    assert variation.now.alike == 1.0


def test_after_a_few_texts_it_lies_between_what_was_measured_elsewhere_and_what_they_are():
    found = []
    for seed in range(200):
        variation, generator = TextVariation(Variation(0.9, 1.0)), np.random.default_rng(seed)
        variation.forget()
        decoded(variation, 1, 0.3, 0.7, generator)
        assert variation.now.sd == 0.9  # one text differs from none
        decoded(variation, 4, 0.3, 0.7, generator)
        found.append(variation.now.sd)
    assert 0.3 < np.mean(found) < 0.7


def test_with_the_sampling_that_was_measured_it_stays():
    variation, generator = TextVariation(Variation(0.9, 1.5)), np.random.default_rng(0)
    decoded(variation, 50, 0.2, 0.8, generator)
    assert variation.now == Variation(0.9, 1.5)


def test_texts_before_another_sampling_are_no_neighbours_of_those_behind_it():
    variation, generator = TextVariation(Variation(0.5, 1.0)), np.random.default_rng(0)
    for p in (0.9, 0.1):
        variation.forget()
        decoded(variation, 1, 0.0, p, generator)
    assert variation.now.sd == 0.5
