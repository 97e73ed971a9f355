"""SmolLM2-135M-Instruct as `make real-model` writes it, once for each engine; without it these tests are skipped."""

from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "build" / "real-model"


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return the folder in Hugging Face layout."""
    if not (FOLDER / "ready").is_file():
        pytest.skip("needs build/real-model: run make real-model")
    return FOLDER


@pytest.fixture(scope="session")
def gguf_model(folder):
    """Return the model and tokenizer of the GGUF file, both by llama.cpp."""
    pytest.importorskip("llama_cpp", reason="needs the gguf extra")
    from treeopt.runtime.models.gguf.file import GGUFFile
    from treeopt.runtime.models.load import load_language_model

    file = GGUFFile(folder.with_suffix(".gguf"))
    return load_language_model(file), file.tokenizer


@pytest.fixture(scope="session")
def tokenizer(folder):
    from treeopt.texts.tokenizer import Tokenizer

    return Tokenizer(folder)


@pytest.fixture(scope="session")
def hf_tokenizer(folder):
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def hf_model(folder):
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def model(folder):
    from treeopt.runtime.models.load import load_language_model

    return load_language_model(folder)
