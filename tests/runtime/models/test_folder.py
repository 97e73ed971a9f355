"""Each file of a model folder is read once."""

from collections import Counter
from pathlib import Path

import pytest

import treeopt.runtime
from treeopt import bundled
from treeopt.files import json_file
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.pair import load_pair
from treeopt.texts import tokenizer


@pytest.fixture
def count_reads(monkeypatch):
    """Return the function that counts how often files of the bundled models were parsed."""
    paths, read_text, fast_tokenizer = [], json_file.read_text, tokenizer.FastTokenizer

    class CountedTokenizer:
        @staticmethod
        def from_file(path):
            paths.append(path)
            return fast_tokenizer.from_file(path)

    def read_counted(path, **limits):
        paths.append(path)
        return read_text(path, **limits)

    monkeypatch.setattr(tokenizer, "FastTokenizer", CountedTokenizer)
    monkeypatch.setattr(json_file, "read_text", read_counted)
    return lambda: Counter(Path(path).relative_to(bundled.FOLDER).as_posix() for path in paths)


def test_pair_reads_each_file_once(count_reads):
    load_pair(sequence_tokens=100)
    files = ("config.json", "tokenizer.json")
    assert count_reads() == {f"{model}/{name}": 1 for model in ("target", "draft") for name in files}


def test_second_read_is_counted(count_reads):
    for _ in range(2):
        folder = ModelFolder(bundled.TARGET)
        _ = folder.content, folder.config, folder.content
    assert count_reads() == {"target/config.json": 2}


def test_runtime_has_no_other_json_reader():
    folder = Path(treeopt.runtime.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "json.load" in path.read_text("utf-8")] == []
