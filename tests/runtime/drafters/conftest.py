"""Models in float64, whose results do not depend on how passes are put together."""

import pytest
import torch

from treeopt.runtime import load_model


@pytest.fixture(scope="session")
def precise_draft(make_checkpoint):
    """Return a draft model of one layer in float64."""
    return load_model(make_checkpoint(seed=2, tie_word_embeddings=True, num_hidden_layers=1), dtype=torch.float64)


@pytest.fixture(scope="session")
def deep_folder(make_checkpoint):
    """Return the folder of a target of 8 layers."""
    return make_checkpoint(seed=3, tie_word_embeddings=False, num_hidden_layers=8, initializer_range=0.2)


@pytest.fixture(scope="session")
def deep(deep_folder):
    """Return a target of 8 layers in float64."""
    return load_model(deep_folder, dtype=torch.float64)
