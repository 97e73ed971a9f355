"""Distributions are what temperature, top-k and top-p make of logits."""

import pytest
import torch

from tests.support.slow_distribution import slow_distribution
from treeopt.records.sampling import MIN_TEMPERATURE
from treeopt.runtime import Sampling, distribution


def probabilities(logits: torch.Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> torch.Tensor:
    return distribution(logits, Sampling(temperature, top_p, top_k))


class TestProbabilities:
    @pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
    @pytest.mark.parametrize("top_k", [0, 1, 2, 5, 16, 17, 1000])
    @pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 3.0])
    def test_equal_the_slow_way(self, temperature, top_p, top_k):
        logits = torch.randn((30, 17), generator=torch.Generator().manual_seed(1)) * 3
        probs = probabilities(logits, temperature, top_p, top_k)
        assert probs.dtype == torch.float32
        expected = torch.tensor(
            [slow_distribution(row, Sampling(temperature, top_p, top_k)) for row in logits], dtype=torch.float32
        )
        torch.testing.assert_close(probs, expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(probs > 0, expected > 0) or top_p == 1.0

    def test_half_precision_logits_give_a_float32_distribution(self):
        logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
        torch.testing.assert_close(probabilities(logits, 1.0), torch.softmax(torch.tensor([[1.0, 2.0, 3.0]]), -1))

    def test_the_token_that_reaches_the_share_is_kept(self):
        logits = torch.log(torch.tensor([[0.125, 0.5, 0.25, 0.125]]))
        assert probabilities(logits, 1.0, 0.5).tolist() == [[0, 1, 0, 0]]
        torch.testing.assert_close(probabilities(logits, 1.0, 0.6), torch.tensor([[0, 2 / 3, 1 / 3, 0]]))

    def test_of_equal_tokens_the_first_are_kept(self):
        assert probabilities(torch.zeros((1, 4)), 1.0, 0.5).tolist() == [[0.5, 0.5, 0, 0]]

    def test_rows_do_not_mix(self):
        logits = torch.randn((5, 9), generator=torch.Generator().manual_seed(2))
        rows = torch.cat([probabilities(row[None], 0.7, 0.8) for row in logits])
        torch.testing.assert_close(probabilities(logits, 0.7, 0.8), rows)

    def test_tokens_as_likely_as_the_last_of_top_k_are_kept(self):
        logits = torch.tensor([[2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
        assert (probabilities(logits, 1.0, top_k=2) > 0).tolist() == [[True, True, True, False], [True] * 4]

    def test_top_k_of_1_leaves_the_likeliest(self):
        logits = torch.randn((9, 6), generator=torch.Generator().manual_seed(4))
        assert torch.equal(probabilities(logits, 2.0, top_k=1), torch.eye(6)[logits.argmax(-1)])

    def test_top_p_is_a_share_of_what_top_k_left(self):
        logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
        torch.testing.assert_close(probabilities(logits, 1.0, 0.6, 2), torch.tensor([[4 / 7, 3 / 7, 0, 0]]))
        torch.testing.assert_close(probabilities(logits, 1.0, 0.5, 2), torch.tensor([[1.0, 0, 0, 0]]))

    def test_logits_of_minus_infinity_get_nothing(self):
        logits = torch.tensor([[0.0, float("-inf"), 0.0, float("-inf")]])
        assert probabilities(logits, 0.7, 0.9).tolist() == [[0.5, 0, 0.5, 0]]

    def test_the_distribution_at_the_least_temperature_is_one_hot(self):
        logits = torch.tensor([[1.0, 3.0, 2.9]])
        assert probabilities(logits, MIN_TEMPERATURE).tolist() == [[0, 1, 0]]
