"""The token after a path: taken from what is left, by a uniform number, and never one of probability 0."""

import numpy as np
import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.runtime import Verifier
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.verifier import DeviceVerifier, HostVerifier
from treeopt.trees import level_widths

VERIFIERS = (HostVerifier, DeviceVerifier)
both_judgings = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])


@pytest.mark.parametrize("testing", VERIFIERS)
class TestQuantile:
    def test_it_is_the_first_token_up_to_which_more_than_the_share_lies(self, testing):
        distribution = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0], dtype=torch.float64)
        for share, token in [(0.0, 1), (0.25, 1), (0.49, 1), (0.5, 3), (0.74, 3), (0.75, 4), (0.999, 4)]:
            assert testing.quantile(distribution, share) == token, share
            assert testing.quantile(4 * distribution, share) == token, share

    def test_no_share_takes_a_token_of_probability_0(self, testing):
        rng = np.random.default_rng(1)
        for _ in range(200):
            distribution = rng.integers(0, 3, 6).astype(float)
            if distribution.sum() == 0:
                continue
            for share in np.arange(0, 1, 1 / 16):  # exact in binary, so that borders are met
                assert distribution[testing.quantile(torch.from_numpy(distribution), float(share))] > 0

    def test_the_largest_share_takes_no_token_of_probability_0(self, testing):
        """Rounding may leave no token, and the last ones of a padded vocabulary have no probability."""
        for seed in range(40):
            logits = 3 * torch.randn(5000, generator=torch.Generator().manual_seed(seed))
            distribution = np.append(logits.softmax(0).double().numpy(), np.zeros(9))
            token = testing.quantile(torch.from_numpy(distribution), 1 - 2**-53)
            assert token < len(distribution)
            assert distribution[token] > 0

    def test_where_nothing_is_left_it_is_the_number_of_tokens(self, testing):
        assert testing.quantile(torch.zeros(4, dtype=torch.float64), 0.5) == 4


@both_judgings
@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
def test_where_draft_and_target_are_alike_and_rounding_rejects_the_target_is_sampled(rule, on_host):
    """A child is then accepted with probability 1 but for rounding, and nothing is left to sample from."""
    distribution = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0]] * 3, dtype=torch.float64)
    verifier = Verifier(RULES[rule], level_widths([2]), 5, CPU, on_host=on_host)
    verifier.test(torch.tensor([0, 2, 1]), distribution, distribution)
    assert verifier.distribution_after(0).abs().sum() < 1e-12
    assert [verifier.token_after(0, uniform) for uniform in (0.0, 0.2, 0.25, 0.9)] == [1, 1, 2, 2]
