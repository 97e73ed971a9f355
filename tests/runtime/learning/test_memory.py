"""Memory does not grow with what is decoded: neither tensors nor what Python holds."""

import gc
import tracemalloc

import pytest
import torch

from tests.runtime.learning.toy import FAST, learning_decoder
from tests.support.slow import slow
from treeopt.runtime import load_model
from treeopt.trees import chain

PROMPT = (2, 0, 3, 1)
PER_TEXT = 100
FEW = 1500
MANY = 100_000


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


@pytest.mark.parametrize("tokens", [FEW, *slow([MANY])])
def test_it_does_not_grow(toys, tokens):
    decoder, learner = learning_decoder(*toys, chain(2), FAST, temperature=0.9)

    def decode(count):
        for _ in range(count // PER_TEXT):
            assert len(list(decoder.generate(PROMPT, PER_TEXT))) == PER_TEXT

    decode(tokens // 10)
    tracemalloc.start()
    try:
        decode(200)
        tensor_bytes, python_bytes = held()
        decode(tokens)
        more_tensor_bytes, more_python_bytes = held()
    finally:
        tracemalloc.stop()
    one_window = FAST.positions * FAST.window_tokens * 16
    assert more_tensor_bytes < tensor_bytes + one_window
    assert more_python_bytes < python_bytes + 100_000
    assert learner.stats.updates > tokens // 1000
