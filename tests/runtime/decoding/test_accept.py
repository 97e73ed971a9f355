"""How a token sampled after every node is followed, at once on a device or one by one on the host."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.acceptance import (
    Draft,
    GreedyAcceptance,
    RuleAcceptance,
    SampledAcceptance,
)
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree

CPU = torch.device("cpu")
TREE = TokenTree([-1, 0, 0, 1])
TOKENS = [5, 2, 4, 1]
PROBS = torch.tensor(
    [[0.0, 0.1, 0.3, 0.2, 0.4, 0.0], [0.2, 0.5, 0.0, 0.3, 0.0, 0.0], [1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0.9, 0.1]]
)
DRAFT = Draft(TREE, TOKENS, torch.tensor(TOKENS), None)
TEXTS = 3000


def expected():
    """Return the probability of each last node and token after it, (n, V)."""
    found = PROBS.double().clone()
    for node in (1, 2, 3):
        parent = int(TREE.parents[node])
        found[node] *= found[parent, TOKENS[node]]
        found[parent, TOKENS[node]] = 0
    return found / found.sum()


def counted(*, reuse=False):
    test, generator, counts = SampledAcceptance(Sampling(1.0)), torch.Generator(), np.zeros(PROBS.shape)
    test.prepare(TREE)
    generator.manual_seed(3)
    for _ in range(TEXTS):
        if reuse:
            generator.manual_seed(3)
        (verdict,) = test([DRAFT], PROBS.log(), [generator])
        assert list(verdict.nodes) in ([0], [0, 1], [0, 2], [0, 1, 3])
        counts[verdict.nodes[-1], verdict.bonus] += 1
    return counts


def test_paths_and_tokens_come_as_often_as_the_target_says(chi_squared):
    assert chi_squared(counted(), expected()) > 1e-3


def test_noise_used_again_is_found(chi_squared):
    assert chi_squared(counted(reuse=True), expected()) < 1e-9


@pytest.mark.parametrize("node", range(4))
def test_only_what_the_path_comes_by_has_to_be_finite(node):
    logits = PROBS.log().masked_fill(torch.arange(4)[:, None] == node, float("nan"))
    for seed in range(40):
        (verdict,) = SampledAcceptance(Sampling(1.0))([DRAFT], logits, [torch.Generator().manual_seed(seed)])
        assert verdict.finite == (node not in verdict.nodes)


SMALL = TokenTree([-1, 0])
OTHER = Draft(SMALL, [3, 3], torch.tensor([3, 3]), PROBS[:2])


@pytest.mark.parametrize(
    "accept",
    [
        GreedyAcceptance(),
        SampledAcceptance(Sampling(0.7)),
        *(
            RuleAcceptance(
                RULES[rule], Sampling(0.7), SimpleNamespace(config=SimpleNamespace(vocabulary=6), device=CPU)
            )
            for rule in ("sequoia", "specinfer", "traversal")
        ),
    ],
    ids=lambda accept: type(accept).__name__,
)
def test_drafts_at_once_are_accepted_as_one_by_one(accept):
    first = DRAFT._replace(probs=PROBS.flip(1).softmax(1))
    drafts = [first, OTHER, first, OTHER]
    for seed in range(30):
        logits = torch.randn(12, 6, generator=torch.Generator().manual_seed(seed))
        logits[seed % 12, 2] = torch.nan if seed % 3 == 0 else 1.0
        single = [
            accept([draft], rows, [torch.Generator().manual_seed(seed + text)])[0]
            for text, (draft, rows) in enumerate(zip(drafts, logits.split([4, 2, 4, 2]), strict=True))
        ]
        found = accept(drafts, logits, [torch.Generator().manual_seed(seed + text) for text in range(4)])
        assert [each.finite for each in found] == [each.finite for each in single]
        assert all(one == other for one, other in zip(found, single, strict=True) if one.finite)
