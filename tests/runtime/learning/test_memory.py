"""Memory does not grow with what is decoded: neither tensors nor what Python holds."""

import gc
import tracemalloc

import pytest
import torch

from tests.runtime.learning.toy import FAST, learning_decoder
from treeopt.runtime import load_model
from treeopt.trees import chain

PROMPT = (2, 0, 3, 1)
PER_TEXT = 100
FIRST, TOKENS = 600, 1500
MOST_BYTES = 60_000
"""Python's own caches fill up for a while: 24 bytes for each token, less than the smallest object has."""


@pytest.fixture(scope="module")
def toys(make_checkpoint):
    """Return a target and a draft of 5 tokens."""
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    return [load_model(make_checkpoint(seed=seed, **sizes)) for seed in (5, 10)]


def held():
    """Return the bytes of all tensors that are there, and those that Python holds."""
    gc.collect()
    tensors = {id(each): each.nbytes for each in gc.get_objects() if type(each) is torch.Tensor}
    return sum(tensors.values()), tracemalloc.get_traced_memory()[0]


def growth(toys, on_tokens=lambda _: None):
    """Return by how many bytes tensors and Python grow while TOKENS are decoded, and the learner."""
    decoder, learner = learning_decoder(*toys, chain(2), FAST, temperature=0.9)

    def decode(count):
        for _ in range(count // PER_TEXT):
            tokens = list(decoder.generate(PROMPT, PER_TEXT))
            assert len(tokens) == PER_TEXT
            on_tokens(tokens)

    tracemalloc.start()
    try:
        decode(FIRST)
        before = held()
        decode(TOKENS)
        after = held()
    finally:
        tracemalloc.stop()
    return *(now - earlier for earlier, now in zip(before, after, strict=True)), learner


def test_it_does_not_grow(toys):
    tensor_bytes, python_bytes, learner = growth(toys)
    assert tensor_bytes < FAST.positions * FAST.window_tokens * 16  # one window
    assert python_bytes < MOST_BYTES
    assert learner.stats.updates > TOKENS // 1000


def test_tokens_that_are_kept_are_found(toys):
    kept = []
    assert growth(toys, lambda tokens: kept.extend((token,) for token in tokens))[1] > MOST_BYTES
