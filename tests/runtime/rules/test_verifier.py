"""The bonus token: sampled from the residual by inverse CDF, and read from a device in two host syncs."""

import pytest
import torch

from tests.support.enumeration import CPU, bonus_weights
from treeopt.runtime import Verifier
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, level_widths


@pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])
@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
def test_empty_residual_samples_the_target(rule, on_host):
    """With equal distributions a child is accepted but for rounding, and the residual is empty."""
    distribution = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0]] * 3, dtype=torch.float64)
    verifier = Verifier(RULES[rule], 5, CPU, on_host=on_host)
    verifier.test([level_widths([2])], torch.tensor([0, 2, 1]), distribution, distribution)
    assert abs(bonus_weights(verifier)[0]).sum() < 1e-12
    assert [verifier.token_after(0, u) for u in (0.0, 0.2, 0.25, 0.9)] == [1, 1, 2, 2]


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_takes_two_host_syncs(rule, monkeypatch):
    trees = [level_widths([2, 1]), TokenTree([-1, 0, 1]), level_widths([2, 1])]
    verifier, probs = Verifier(RULES[rule], 5, CPU, on_host=False), torch.full((13, 5), 0.2)
    tokens, syncs = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4]), []
    verifier.test(trees, tokens, probs, probs)  # the layout is computed once

    def count(name, method):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *args: syncs.append(name) or method(self, *args))

    for name in ("tolist", "item", "numpy", "cpu", "__int__", "__float__", "__bool__"):
        count(name, getattr(torch.Tensor, name))
    verifier.test(trees, tokens, probs, probs)
    verifier.verdicts([None] * 3)
    assert syncs == ["tolist"] * 2
