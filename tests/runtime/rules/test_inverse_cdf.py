"""Inverse-CDF sampling, by the kernel and with tensors: the right token, and never one of probability 0."""

import numpy as np
import pytest
import torch

from treeopt.runtime.rules import kernels
from treeopt.runtime.rules.distributions import inverse_cdf

LARGEST = 1 - 2**-53


def with_tensors(weights, u):
    return int(inverse_cdf(torch.from_numpy(weights), torch.tensor([u], dtype=torch.float64)))


both = pytest.mark.parametrize("sample", [kernels.inverse_cdf, with_tensors], ids=["kernel", "tensors"])


@both
def test_it_is_the_first_token_whose_cumulative_share_exceeds_u(sample):
    weights = np.array([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    for u, token in [(0.0, 1), (0.25, 1), (0.49, 1), (0.5, 3), (0.74, 3), (0.75, 4), (0.999, 4)]:
        assert sample(weights, u) == token, u
        assert sample(4 * weights, u) == token, u


@both
def test_over_many_blocks_it_is_the_token_of_the_cumulative_sum(sample):
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 3, 1000).astype(float)  # exact in binary, and 0 in places
    weights[256:512] = 0.0  # a block without a weight
    for u in rng.integers(0, 2**20, 200) / 2**20:
        assert sample(weights, float(u)) == np.searchsorted(weights.cumsum(), u * weights.sum(), side="right")


@both
def test_no_u_takes_a_token_of_probability_0(sample):
    rng = np.random.default_rng(1)
    for _ in range(200):
        weights = rng.integers(0, 3, 6).astype(float)
        for u in np.arange(0, 1, 1 / 16) if weights.any() else ():  # exact in binary, so that borders are met
            assert weights[sample(weights, float(u))] > 0


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neither_does_the_largest_u_where_the_vocabulary_is_padded(sample, dtype):
    """Rounding may leave no token, and the last ones have no probability."""
    for seed in range(100):
        logits = 3 * torch.randn(3000, generator=torch.Generator().manual_seed(seed))
        weights = np.append(logits.softmax(0).numpy(), np.zeros(300)).astype(dtype)
        assert weights[sample(weights, LARGEST)] > 0


def test_weights_that_are_all_0_or_not_finite_give_no_error():
    for value in (0.0, np.nan, np.inf):
        weights = np.full(4, value)
        assert 0 <= with_tensors(weights, 0.5) < 4
        assert -1 <= kernels.inverse_cdf(weights, 0.5) < 4
    assert kernels.inverse_cdf(np.zeros(4), 0.5) == -1
