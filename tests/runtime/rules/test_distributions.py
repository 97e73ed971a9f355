"""Temperature, top-k and top-p turn logits into distributions."""

import pytest
import torch

from tests.support.slow_distribution import slow_distribution
from treeopt.records.sampling import MIN_TEMPERATURE
from treeopt.runtime import Sampling, distribution


def probabilities(logits: torch.Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> torch.Tensor:
    return distribution(logits, Sampling(temperature, top_p, top_k))


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 17, 1000])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 3.0])
def test_probabilities_equal_the_slow_twins(temperature, top_p, top_k):
    logits = torch.randn((8, 17), generator=torch.Generator().manual_seed(1)) * 3
    probs = probabilities(logits, temperature, top_p, top_k)
    assert probs.dtype == torch.float32
    expected = torch.tensor([slow_distribution(row, Sampling(temperature, top_p, top_k)) for row in logits])
    torch.testing.assert_close(probs, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(probs > 0, expected > 0) or top_p == 1.0


def test_half_precision_logits_give_a_float32_distribution():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(probabilities(logits.bfloat16(), 1.0), torch.softmax(logits, -1))


def test_top_p_keeps_the_token_that_reaches_it_and_the_first_of_equal_ones():
    logits = torch.log(torch.tensor([[0.125, 0.5, 0.25, 0.125]]))
    assert probabilities(logits, 1.0, 0.5).tolist() == [[0, 1, 0, 0]]
    torch.testing.assert_close(probabilities(logits, 1.0, 0.6), torch.tensor([[0, 2 / 3, 1 / 3, 0]]))
    assert probabilities(torch.zeros((1, 4)), 1.0, 0.5).tolist() == [[0.5, 0.5, 0, 0]]


def test_top_k_keeps_ties_with_the_last_token():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert (probabilities(logits, 1.0, top_k=2) > 0).tolist() == [[True, True, True, False], [True] * 4]


def test_logits_of_minus_infinity_have_probability_0():
    logits = torch.tensor([[0.0, float("-inf"), 0.0, float("-inf")]])
    assert probabilities(logits, 0.7, 0.9).tolist() == [[0.5, 0, 0.5, 0]]


def test_the_lowest_temperature_is_greedy():
    assert probabilities(torch.tensor([[1.0, 3.0, 2.9]]), MIN_TEMPERATURE).tolist() == [[0, 1, 0]]
