"""Each statistic of the test of losslessness, on texts of a Markov chain that only this one can find."""

import numpy as np
import pytest

from treeopt.profiler.bench.losslessness import greedy_losslessness, sampled_losslessness
from treeopt.records.sampling import Sampling

EVEN = Sampling(1.0)
TEXTS, TOKENS = 4, 400
OPEN = np.array([0.301, 0.299, 0.181, 0.179, 0.021, 0.019])
"""After even tokens: pairs of tokens are nearly equally probable."""
SURE = np.array([0.02, 0.952, 0.02, 0.003, 0.003, 0.002])
"""After odd tokens: no choice to speak of."""
DISTRIBUTIONS = np.array([OPEN, SURE] * 3)


@pytest.fixture(scope="module")
def target(make_markov):
    return make_markov(np.log(DISTRIBUTIONS), max_positions=TOKENS + 2)


def sampled(distributions, *, seed=0):
    """Return texts of a Markov chain with the distribution of the next token after each token, float (V, V)."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(TEXTS):
        text = [0]
        while len(text) <= TOKENS:
            text.append(int(rng.choice(len(distributions), p=distributions[text[-1]])))
        found.append(text[1:])
    return found


def result_of(target, texts):
    return sampled_losslessness(target, [[0]] * len(texts), texts, EVEN)


@pytest.mark.parametrize("seed", range(3))
def test_texts_of_the_distribution_itself_pass(target, seed):
    found = result_of(target, sampled(DISTRIBUTIONS, seed=seed))
    assert found.lossless, found.evidence


def test_tokens_in_the_place_of_ones_as_probable_are_found(target):
    """Their surprise is what it should be: only the places of the tokens tell, where there is a choice."""
    one_of_each_pair = np.repeat(OPEN.reshape(3, 2).sum(1), 2) * np.array([1, 0, 0, 1, 1, 0])
    assert not result_of(target, sampled(np.array([one_of_each_pair, SURE] * 3))).lossless


def test_a_choice_that_is_never_made_where_it_is_rare_is_found(target):
    """Places are looked at where the distribution leaves a choice: only the surprise tells."""
    assert not result_of(target, sampled(np.array([OPEN, np.eye(6)[1]] * 3))).lossless


def test_a_text_that_ends_at_once_tells_nothing(target):
    texts = sampled(DISTRIBUTIONS)
    assert sampled_losslessness(target, [[0]] * 5, [*texts, []], EVEN) == result_of(target, texts)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["near-tie first", "fault first"])
def test_a_near_tie_in_one_text_does_not_excuse_another(make_markov, order):
    model = make_markov([1.0, 0.0, 8.0, 8.0 + 2.0**-20])
    prompts, plain = [[0], [0]], [[3, 3, 3], [3, 3, 3]]
    texts = [[3, 2, 3], [3, 3, 1]]
    found = greedy_losslessness(model, prompts, plain, [texts[place] for place in order])
    assert not found.lossless
    assert found.evidence == "1 of 2 outputs differ"
    assert greedy_losslessness(model, prompts[:1], plain[:1], texts[:1]).evidence.endswith("1 at near-ties")
