"""A spoilt model differs from its folder's by its noise alone."""

import torch

from treeopt.runtime import load_model
from treeopt.runtime.models.spoilt import spoilt_model

TEXT = torch.tensor([3, 1, 4, 1, 5])


def logits(model):
    cache = model.new_cache(len(TEXT))
    return model.forward(TEXT, torch.arange(len(TEXT)), cache, torch.full((5, 5), -torch.inf).triu(1))[0]


def test_noise_changes_what_a_model_says_and_as_much_as_it_is(target_folder):
    plain = logits(load_model(target_folder))
    off = [float((logits(spoilt_model(target_folder, noise)) - plain).abs().mean()) for noise in (1e-6, 0.1, 1.0)]
    assert off[0] < 1e-3 < off[1] < off[2]


def test_equal_seeds_give_equal_models(target_folder):
    first, same, other = (logits(spoilt_model(target_folder, 0.5, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
