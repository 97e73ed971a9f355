"""A folder's files are read once, whoever asks for what they hold."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

from treeopt import pair
from treeopt.runtime import load_model, tokenizer
from treeopt.runtime.folder import ModelFolder
from treeopt.runtime.pair import load_pair


@pytest.fixture(scope="module")
def opened_names():
    """Return the list of files that Python opens, from an audit hook, which cannot be taken away again."""
    names = []
    sys.addaudithook(lambda event, given: names.append(str(given[0])) if event == "open" else None)
    return names


@pytest.fixture
def opened(opened_names, monkeypatch):
    """Return the function that counts the model files opened since, in Python and by the tokenizer's library."""
    own = tokenizer.FastTokenizer

    class Counted:
        @staticmethod
        def from_file(path):
            opened_names.append(path)
            return own.from_file(path)

    monkeypatch.setattr(tokenizer, "FastTokenizer", Counted)
    opened_names.clear()
    return lambda: Counter(Path(name).relative_to(pair.FOLDER).as_posix() for name in opened_names if ".json" in name)


def test_a_pair_opens_each_file_once(opened):
    load_pair(text_tokens=100)
    assert opened() == {
        f"{model}/{name}": 1 for model in ("target", "draft") for name in ("config.json", "tokenizer.json")
    }


def test_the_same_count_finds_what_is_read_again(opened):
    for _ in range(2):
        folder = ModelFolder(pair.TARGET)
        _ = folder.content, folder.config, folder.content
    assert opened() == {"target/config.json": 2}


def test_a_model_is_the_same_from_a_path_and_from_a_folder():
    folder = ModelFolder(pair.DRAFT)
    models = [load_model(source) for source in (folder, pair.DRAFT, str(pair.DRAFT))]
    assert [model.config for model in models] == [folder.config] * 3
    assert len({model.name for model in models}) == 1
    assert folder.weight_files.keys() == load_file(pair.DRAFT / "model.safetensors").keys()
