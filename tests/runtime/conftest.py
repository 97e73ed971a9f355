"""Tiny random Llama checkpoints, saved by transformers, whose models are the reference for logits."""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support import passes
from tests.support.device import DEVICE
from treeopt.runtime import load_model

SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough for peaked distributions that depend on the whole sequence
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """Return a function that saves a random checkpoint and returns its folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(*, seed, stored_dtype=torch.float32, max_shard_size="1GB", **changes):
        folder = tmp_path_factory.mktemp("model")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))
        model.to(stored_dtype).save_pretrained(folder, max_shard_size=max_shard_size)
        return folder

    return make


@pytest.fixture(scope="session")
def target_folder(make_checkpoint):
    return make_checkpoint(seed=1, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def target(target_folder):
    """Return a model of 23 tokens with an untied head."""
    return load_model(target_folder, device=DEVICE)


@pytest.fixture(scope="session")
def draft(make_checkpoint):
    """Return a smaller model with other weights, the same vocabulary and a tied head."""
    return load_model(make_checkpoint(seed=2, tie_word_embeddings=True, num_hidden_layers=1), device=DEVICE)


@pytest.fixture(scope="session")
def logits_after():
    """Return the function from a model and a sequence to the logits (V,) after it, on the CPU, in a new cache."""
    return lambda model, tokens: passes.logits_after(model, tokens).cpu()


@pytest.fixture(scope="session")
def greedy_text(logits_after):
    """Return the function that continues a prompt by the most probable tokens, a fresh pass for each."""
    outputs = {}  # with the models, whose ids stay unique as long as they are kept

    def greedy_text(model, prompt, count):
        text, _ = outputs.setdefault((id(model), *prompt), ([], model))
        while len(text) < count:
            text.append(int(logits_after(model, [*prompt, *text]).argmax()))
        return text[:count]

    return greedy_text


@pytest.fixture(scope="session")
def chi_squared():
    """Return the function from counts and their expected distribution to a p-value; rare cells are pooled."""

    def p_value(counts, distribution):
        counts, expected = np.asarray(counts, np.float64).ravel(), np.asarray(distribution, np.float64).ravel()
        assert abs(expected.sum() - 1) < 1e-9
        if counts[expected == 0].any():
            return 0.0
        expected = expected * counts.sum()
        rare = expected < 5
        cells = [(counts[~rare], expected[~rare]), ([counts[rare].sum()], [expected[rare].sum()])]
        counts, expected = (np.concatenate(part) for part in zip(*cells, strict=True))
        possible = expected > 0
        return float(stats.chisquare(counts[possible], expected[possible]).pvalue) if possible.sum() > 1 else 1.0

    return p_value
