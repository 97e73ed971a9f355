"""While weights change the text follows the target, because a proposal is verified against what it was sampled from."""

from dataclasses import replace

import pytest
import torch

from tests.runtime.learning.toy import FAST, late
from tests.support.perturbed import perturbed_model
from tests.support.toy_distribution import FEW, LENGTH, SAMPLINGS, ToyDistribution
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.learning.learner import Learner
from treeopt.runtime.models.checkpoint import named_tensors
from treeopt.runtime.models.trainable import copy_model
from treeopt.trees import level_widths

PROMPT = (2, 0, 3, 1, 4, 0, 3, 2, 0)
TREE = level_widths([2, 1])
SAMPLING = SAMPLINGS[1]


@pytest.fixture(scope="module")
def toy_folder(make_checkpoint):
    """Return the folder of a target of 5 tokens."""
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "tie_word_embeddings": False, "initializer_range": 0.25}
    return make_checkpoint(seed=5, **sizes)


@pytest.fixture(scope="module")
def toy(toy_folder):
    return load_model(toy_folder)


@pytest.fixture
def p_value(toy, toy_folder, logits_after, chi_squared):
    """Return the function that decodes texts, the draft learning in all of them, and tells how probable their beginnings are."""

    def p_value(kind=Decoder, rate=FAST.rate):
        own = perturbed_model(toy_folder, 1.0)
        learner = Learner(own, replace(FAST, rate=rate))
        before = named_tensors(copy_model(own))
        numbers = {"temperature": SAMPLING.temperature, "top_p": SAMPLING.top_p, "top_k": SAMPLING.top_k}
        decoder = kind(toy, own, TREE, rule="sequoia", seed=1, on_step=learner, **numbers)
        found = ToyDistribution(None, logits_after, chi_squared).of(decoder, toy, PROMPT, FEW, SAMPLING)
        assert learner.stats.updates > 5
        assert any(not torch.allclose(each, before[name], atol=1e-2) for name, each in named_tensors(own).items())
        return found

    return p_value


@pytest.mark.parametrize("rate", [FAST.rate, 0.03])  # the second so fast that it unlearns as much as it learns
def test_texts_follow_the_target_while_weights_change(p_value, rate):
    found, tokens_per_step = p_value(rate=rate)
    assert found > 1e-3
    assert 1 < tokens_per_step < LENGTH


def test_a_draft_verified_against_newer_weights_is_found(p_value, toy_folder, logits_after):
    """Negative control: between sampling and verification the weights change, and the newer distribution is looked up."""
    newer = perturbed_model(toy_folder, 4.0, seed=1)

    assert p_value(late(newer, logits_after, SAMPLING))[0] < 1e-6
