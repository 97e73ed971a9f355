"""Small models with random weights, made in memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from treeopt.runtime import Transformer
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.transformer import Layer, Weights

CONFIG = ModelConfig(
    vocabulary=23,
    hidden=16,
    intermediate=24,
    layers=1,
    heads=2,
    key_value_heads=1,
    head_size=8,
    norm_epsilon=1e-6,
    rope_base=10_000.0,
    max_positions=128,
    tied_head=False,
    end_tokens=(),
)


@pytest.fixture(scope="session")
def make_model():
    """Return a function that makes a model of one layer; `noise` is the fraction of its weights that differs between models."""

    def make(*, seed, name="model", noise=0.0, **changes):
        config = replace(CONFIG, **changes)
        generator, other = (torch.Generator().manual_seed(number) for number in (seed, seed + 1000))

        def weight(*shape):
            common, different = (torch.randn(shape, generator=source) for source in (generator, other))
            return 0.4 * ((1 - noise) * common + noise * different)

        layer = Layer(
            config=config,
            query_key_value=Linear(weight(4 * config.head_size, config.hidden)),
            attention_output=Linear(weight(config.hidden, 2 * config.head_size)),
            mlp_norm=torch.ones(config.hidden),
            gate_up=Linear(weight(2 * config.intermediate, config.hidden)),
            down=Linear(weight(config.hidden, config.intermediate)),
        )
        embedding, head = weight(config.vocabulary, config.hidden), Linear(weight(config.vocabulary, config.hidden))
        norm = torch.ones(config.hidden)
        weights = Weights(embedding=embedding, layers=(layer,), input_norms=(norm,), norm=norm, head=head)
        return Transformer(config, weights, name=name)

    return make


@pytest.fixture(scope="session")
def make_markov():
    """Return a function that makes a model whose logits depend on the last token only, exactly.

    It takes logits (V, V), or (V,) if they are the same after every token; attention and the MLP add nothing.
    """

    def make(logits, *, dtype=torch.float32, **changes):
        size = np.shape(logits)[-1]
        logits = torch.from_numpy(np.broadcast_to(np.asarray(logits, float), (size, size)).copy())
        sizes = {"hidden": size, "intermediate": 1, "heads": 1, "key_value_heads": 1, "head_size": 2}
        config = replace(CONFIG, vocabulary=size, norm_epsilon=0.0, **sizes, **changes)

        def zeros(*shape):
            return Linear(torch.zeros(shape, dtype=dtype))

        ones = torch.ones(size, dtype=dtype)
        layer = Layer(
            config=config,
            query_key_value=zeros(6, size),
            attention_output=zeros(size, 2),
            mlp_norm=ones,
            gate_up=zeros(2, size),
            down=zeros(size, 1),
        )
        head = Linear((logits.T / size**0.5).to(dtype).contiguous())  # the last norm makes one-hot rows so much longer
        embedding = torch.eye(size, dtype=dtype)
        weights = Weights(embedding=embedding, layers=(layer,), input_norms=(ones,), norm=ones, head=head)
        return Transformer(config, weights, name="Markov")

    return make


@pytest.fixture(scope="session")
def target(make_model):
    return make_model(seed=1, name="large")


@pytest.fixture(scope="session")
def draft(make_model):
    """Return a model that often predicts what the target predicts."""
    return make_model(seed=1, noise=0.15, name="small")


@pytest.fixture(scope="session")
def prompts():
    return [np.random.default_rng(seed).integers(23, size=5 + seed).tolist() for seed in range(6)]
