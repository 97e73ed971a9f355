"""Ends of paths that the loops find in several texts at once: those that each selection finds in each text alone."""

import numpy as np
import pytest
import torch

from tests.support.decoded import random_tree
from tests.support.enumeration import CPU
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.verifier import DeviceVerifier, HostVerifier

VOCABULARY, TEXTS = 6, 4


def tokens_after(distribution, share):
    """Return the tokens that a share may stand for, by sums in plain order; two where it stands at their border."""
    cumulative = np.cumsum(distribution)
    found = [np.searchsorted(cumulative, share * cumulative[-1] + shift, side="right") for shift in (-1e-9, 1e-9)]
    return {int(each) for each in found}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_every_text_ends_where_its_selection_says(rule, dtype, seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(seed, int(rng.integers(2, 12)))
    several = HostVerifier(RULES[rule], tree, VOCABULARY, CPU, TEXTS)
    alone = DeviceVerifier(RULES[rule], tree, VOCABULARY, CPU)
    n, parents = tree.nodes, np.count_nonzero(tree.child_counts)
    seen = set()
    for round_number in range(30):
        texts = (TEXTS, 1, 2)[round_number % 3]
        acceptance = torch.from_numpy(rng.choice([0.0, 0.3, 0.6, 0.6, 1.0], (texts, n)))  # with ties
        acceptance[:, 0] = 1.0
        noise = torch.from_numpy(rng.random((texts, n + 1)))
        target = torch.from_numpy(rng.dirichlet(np.ones(VOCABULARY), (texts, n))).to(dtype)
        target[torch.from_numpy(rng.random((texts, n)) < 0.1)] = torch.nan
        several.residual[:] = torch.from_numpy(rng.dirichlet(np.ones(VOCABULARY), len(several.residual)))
        found = several.ends(target.flatten(0, 1), acceptance.flatten(), noise)
        assert len(found) == texts
        for text, end in enumerate(found):
            for node, row in alone.rows.items():
                alone.residual[row] = several.residual[text * parents + several.rows[node]]
            (expected,) = alone.ends(target[text], acceptance[text], noise[[text]])
            assert (end.node, end.finite) == (expected.node, expected.finite)
            seen.add((end.node, end.finite))
            if end.finite:
                row = alone.rows.get(end.node)
                after = target[text, end.node].double() if row is None else alone.residual[row]
                assert end.token in tokens_after(after.numpy(), float(noise[text, -1]))
                if text == 0:
                    assert end.token == several.token_after(target[0], end.node, float(noise[0, -1]))
    assert len(seen) > 1


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
def test_where_nothing_is_left_the_target_is_sampled_in_every_text(rule):
    tree = random_tree(0, 3)
    several = HostVerifier(RULES[rule], tree, VOCABULARY, CPU, 2)
    several.residual.zero_()
    target = torch.tensor([[0.0, 0.25, 0.75, 0.0, 0.0, 0.0]]).repeat(2 * tree.nodes, 1)
    acceptance = torch.zeros(2, tree.nodes, dtype=torch.float64)
    acceptance[:, 0] = 1.0
    noise = torch.full((2, tree.nodes + 1), 0.5, dtype=torch.float64)
    noise[:, -1] = torch.tensor([0.2, 0.25])
    assert several.ends(target, acceptance.flatten(), noise) == [(0, 1, True), (0, 2, True)]
