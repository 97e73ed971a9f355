"""The joint distribution of the first tokens, decoded over two steps or more, on random models of 5 tokens and real caches."""

from dataclasses import replace
from itertools import count, product

import numpy as np
import pytest
import torch

from tests.support import broken
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling, distribution, load_model
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, level_widths

PROMPT = (2, 0, 3)
EVEN = Sampling(1.0)
TWO_OF_TWO = level_widths([2, 2])
CASES = (
    ("sequoia", chain(1), 600, EVEN, None),
    ("sequoia", TWO_OF_TWO, 300, EVEN, None),
    ("specinfer", TWO_OF_TWO, 300, EVEN, None),
    ("target", TWO_OF_TWO, 300, EVEN, None),
    ("traversal", TWO_OF_TWO, 300, EVEN, None),
    ("traversal", TokenTree([-1, 0, 0, 0, 1]), 300, Sampling(0.8, top_k=3), Sampling(0.5, top_p=0.9)),
    ("specinfer", TokenTree([-1, 0, 0, 0, 1]), 300, Sampling(0.8, top_p=0.9), Sampling(1.5, top_k=2)),
)


@pytest.fixture(scope="module")
def pair(make_checkpoint):
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "tie_word_embeddings": False, "initializer_range": 0.25}
    return [load_model(make_checkpoint(seed=seed, **sizes)) for seed in (5, 6)]


@pytest.fixture(scope="module")
def exact(pair, logits_after):
    """Return the function that gives the joint distribution of the next tokens, from a fresh pass for each text."""

    def joint(length, sampling):
        found = np.ones((5,) * length)
        for done in range(length):
            for text in product(range(5), repeat=done):
                after = distribution(logits_after(pair[0], [*PROMPT, *text])[None], sampling)[0].double().numpy()
                found[text] *= (after / after.sum()).reshape(5, *[1] * (length - done - 1))
        return found

    return joint


@pytest.fixture
def p_value(exact, chi_squared):
    """Return the function that decodes texts and gives the p-value of their first tokens."""

    def p_value(models, rule, tree, texts, sampling=EVEN, draft_sampling=None, *, seed=1, before_each=lambda: None):
        length = tree.max_depth + 2
        decoder = Decoder(
            *models,
            tree,
            rule=rule,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            draft_sampling=draft_sampling,
            seed=seed,
            lossy=rule in LOSSY_RULES,
        )
        counts = np.zeros((5,) * length)
        for _ in range(texts):
            before_each()
            counts[tuple(decoder.generate(PROMPT, length))] += 1
        return chi_squared(counts, exact(length, sampling))

    return p_value


@pytest.mark.parametrize(("rule", "tree", "texts", "sampling", "draft_sampling"), CASES)
def test_several_steps_follow_the_distribution_of_the_target(
    pair, p_value, rule, tree, texts, sampling, draft_sampling
):
    assert p_value(pair, rule, tree, texts, sampling, draft_sampling) > 1e-3


def test_plain_decoding_follows_it_too(pair, p_value):
    assert p_value((pair[0], None), "sequoia", chain(0), 1000, seed=2) > 1e-3


def test_noise_that_is_used_again_in_the_next_step_is_found(pair, p_value, monkeypatch):
    texts, noise = count(), torch.Generator()
    again = lambda stepper, texts: stepper.drafter.propose(texts, [noise.clone_state()])
    monkeypatch.setattr(Stepper, "draft", again)
    found = p_value(pair, "sequoia", chain(1), 600, seed=3, before_each=lambda: noise.manual_seed(next(texts)))
    assert found < 1e-6


def test_likeliest_children_under_a_rule_for_drawn_ones_are_found(pair, p_value, monkeypatch):
    monkeypatch.setitem(RULES, "sequoia", replace(RULES["sequoia"], draw=broken.draw_likeliest))
    assert p_value(pair, "sequoia", TWO_OF_TWO, 300, seed=4) < 1e-6


def test_the_lossy_rule_is_found(pair, p_value):
    assert p_value(pair, "typical", TWO_OF_TWO, 300) < 1e-6


def test_a_distribution_that_leaves_top_k_out_is_found(pair, p_value, monkeypatch):
    def without_top_k(logits, sampling):
        return distribution(logits, replace(sampling, top_k=0))

    monkeypatch.setattr("treeopt.runtime.decoding.acceptance.distribution", without_top_k)
    assert p_value(pair, "sequoia", chain(1), 500, Sampling(0.8, top_k=3)) < 1e-6
