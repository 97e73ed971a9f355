"""Acceptance of drafts: by tokens sampled from the target after every node, one by one and in batches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.slow import slow
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.acceptance import Acceptance, Draft
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree

TREE = TokenTree([-1, 0, 0, 1])
TOKENS = [5, 2, 4, 1]
PROBS = torch.tensor(
    [[0.0, 0.1, 0.3, 0.2, 0.4, 0.0], [0.2, 0.5, 0.0, 0.3, 0.0, 0.0], [1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0.9, 0.1]]
)
DRAFT = Draft(TREE, TOKENS, torch.tensor(TOKENS), None)
OTHER = Draft(TokenTree([-1, 0]), [3, 3], torch.tensor([3, 3]), PROBS[:2])
TARGET = SimpleNamespace(config=SimpleNamespace(vocabulary=6), device=torch.device("cpu"))


def acceptance(rule, temperature):
    return Acceptance(RULES[rule], Sampling(temperature), TARGET)


def exact_ends():
    """Return the probability of each last node and bonus token, (n, V)."""
    ends = PROBS.double().clone()
    for node in (1, 2, 3):
        parent = int(TREE.parents[node])
        ends[node] *= ends[parent, TOKENS[node]]
        ends[parent, TOKENS[node]] = 0
    return ends / ends.sum()


@pytest.mark.parametrize("reseeded", [False, *slow([True])])
def test_ends_follow_the_target_and_repeated_random_numbers_are_found(chi_squared, reseeded):
    accept, generator, counts = acceptance("target", 1.0), torch.Generator().manual_seed(3), np.zeros((4, 6))
    accept.prepare(TREE)
    for _ in range(2000):
        if reseeded:
            generator.manual_seed(3)
        (verdict,) = accept([DRAFT], PROBS.log(), [generator])
        assert verdict.nodes in ((0,), (0, 1), (0, 2), (0, 1, 3))
        counts[verdict.nodes[-1], verdict.bonus] += 1
    p_value = chi_squared(counts, exact_ends())
    assert p_value < 1e-9 if reseeded else p_value > 1e-3


@pytest.mark.parametrize("node", range(4))
def test_only_distributions_along_the_path_must_be_finite(node):
    logits = PROBS.log().masked_fill(torch.arange(4)[:, None] == node, float("nan"))
    for seed in range(40):
        (verdict,) = acceptance("target", 1.0)([DRAFT], logits, [torch.Generator().manual_seed(seed)])
        assert verdict.finite == (node not in verdict.nodes)


@pytest.mark.parametrize(
    ("rule", "temperature"),
    [("target", 0.0), ("target", 0.7), ("sequoia", 0.7), ("specinfer", 0.7), ("traversal", 0.7)],
)
def test_a_batch_is_accepted_as_each_draft_alone(rule, temperature):
    accept = acceptance(rule, temperature)
    first = DRAFT._replace(probs=PROBS.flip(1).softmax(1))
    drafts = [first, OTHER, first, OTHER]
    for seed in range(30):
        logits = torch.randn(12, 6, generator=torch.Generator().manual_seed(seed))
        logits[seed % 12, 2] = torch.nan if seed % 3 == 0 else 1.0
        generators = [[torch.Generator().manual_seed(seed + number) for number in range(4)] for _ in range(2)]
        rows = logits.split([4, 2, 4, 2])
        alone = [accept([drafts[n]], rows[n], [generators[0][n]])[0] for n in range(4)]
        batch = accept(drafts, logits, generators[1])
        assert [verdict.finite for verdict in batch] == [verdict.finite for verdict in alone]
        assert all(one == other for one, other in zip(batch, alone, strict=True) if one.finite)
