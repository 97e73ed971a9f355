"""Tiny random Llama folders of bytes, and GGUF files of them; skipped where llama.cpp is not installed."""

import shutil
from functools import cache

import pytest

from tests.scripts import together
from treeopt import bundled

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "eos_token_id": 0}


@pytest.fixture(scope="session")
def byte_folders(make_checkpoint):
    """Return the folders of a target and a draft."""
    folders = [
        make_checkpoint(seed=1, tie_word_embeddings=False, **SIZES),
        make_checkpoint(seed=2, tie_word_embeddings=True, num_hidden_layers=1, **SIZES),
    ]
    for folder in folders:
        shutil.copy(bundled.TARGET / "tokenizer.json", folder)
    return folders


@pytest.fixture(scope="session")
def gguf_files(byte_folders, tmp_path_factory):
    """Return a function from a dtype to the files of target and draft."""
    pytest.importorskip("gguf", reason="needs the gguf extra")
    pytest.importorskip("llama_cpp", reason="needs the gguf extra")
    make_gguf = together("tools", "make_gguf")[0].make_gguf

    @cache
    def files(weight_dtype="f32"):
        folder = tmp_path_factory.mktemp(weight_dtype)
        paths = [folder / "target.gguf", folder / "draft.gguf"]
        for source, path in zip(byte_folders, paths, strict=True):
            make_gguf(source, path, weight_dtype)
        return paths

    return files


@pytest.fixture(scope="session")
def gguf_pair(gguf_files):
    """Return the models of both files, float32."""
    from treeopt.runtime.models.gguf import load_gguf

    return [load_gguf(path) for path in gguf_files()]
