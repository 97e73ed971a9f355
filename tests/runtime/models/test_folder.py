"""A folder's files are read once, whoever asks for what they hold."""

from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

import treeopt.runtime
from treeopt import bundled
from treeopt.files import json_file
from treeopt.runtime import load_model
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.pair import load_pair
from treeopt.texts import tokenizer


@pytest.fixture
def read(monkeypatch):
    """Return what counts the files of the bundled models whose content has been parsed."""
    names, own_text, own_tokenizer = [], json_file.read_text, tokenizer.FastTokenizer

    class Counted:
        @staticmethod
        def from_file(path):
            names.append(path)
            return own_tokenizer.from_file(path)

    def read_text(path, **limits):
        names.append(path)
        return own_text(path, **limits)

    monkeypatch.setattr(tokenizer, "FastTokenizer", Counted)
    monkeypatch.setattr(json_file, "read_text", read_text)
    return lambda: Counter(Path(name).relative_to(bundled.FOLDER).as_posix() for name in names)


def test_a_pair_reads_each_file_once(read):
    load_pair(sequence_tokens=100)
    files = ("config.json", "tokenizer.json")
    assert read() == {f"{model}/{name}": 1 for model in ("target", "draft") for name in files}


def test_the_same_count_finds_what_is_read_again(read):
    for _ in range(2):
        folder = ModelFolder(bundled.TARGET)
        _ = folder.content, folder.config, folder.content
    assert read() == {"target/config.json": 2}


def test_no_module_of_the_runtime_has_a_reader_of_its_own():
    folder = Path(treeopt.runtime.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "json.load" in path.read_text("utf-8")] == []


def test_a_model_is_the_same_from_a_path_and_from_a_folder():
    folder = ModelFolder(bundled.DRAFT)
    models = [load_model(source) for source in (folder, bundled.DRAFT, str(bundled.DRAFT))]
    assert [model.config for model in models] == [folder.config] * 3
    assert len({model.name for model in models}) == 1
    assert folder.weight_files.keys() == load_file(bundled.DRAFT / "model.safetensors").keys()
