"""The token after a path: taken from the residual by inverse CDF."""

import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.runtime import Verifier
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, level_widths

both_judgings = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])


@both_judgings
@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
def test_where_draft_and_target_are_alike_and_rounding_rejects_the_target_is_sampled(rule, on_host):
    """A child is then accepted with probability 1 but for rounding, and nothing is left to sample from."""
    distribution = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0]] * 3, dtype=torch.float64)
    verifier = Verifier(RULES[rule], 5, CPU, on_host=on_host)
    verifier.test([level_widths([2])], torch.tensor([0, 2, 1]), distribution, distribution)
    assert verifier.distribution_after(0).abs().sum() < 1e-12
    assert [verifier.token_after(0, u) for u in (0.0, 0.2, 0.25, 0.9)] == [1, 1, 2, 2]


def noted(name, method, reads):
    def read(self, *args):
        reads.append(name)
        return method(self, *args)

    return read


@pytest.mark.parametrize("rule", RULES)
def test_a_device_is_waited_for_twice_whatever_the_batch(rule, monkeypatch):
    """Reading a number of a tensor on a device waits for it."""
    trees = [level_widths([2, 1]), TokenTree([-1, 0, 1]), level_widths([2, 1])]
    verifier, probs = Verifier(RULES[rule], 5, CPU, on_host=False), torch.full((13, 5), 0.2)
    tokens, reads = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4]), []
    verifier.test(trees, tokens, probs, probs)  # the layout is computed once
    for name in ("tolist", "item", "numpy", "cpu", "__int__", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, noted(name, getattr(torch.Tensor, name), reads))
    verifier.test(trees, tokens, probs, probs)
    verifier.verdicts([None] * 3)
    assert reads == ["tolist"] * 2
