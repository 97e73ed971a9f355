"""Small random models of transformers, each saved and loaded once."""

from functools import cache

import pytest

from tests.support.hf_models import random_model


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory):
    """Return a function from an architecture of `tests.support.hf_models` to a folder that contains such a model."""

    @cache
    def save(name):
        folder = tmp_path_factory.mktemp("models") / name
        random_model(name).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def loaded_adapter(adapter_folder):
    """Return a function from an architecture to the adapter of that model."""
    from treeopt.runtime.models.hf import load_adapter

    return cache(lambda name: load_adapter(adapter_folder(name)))
