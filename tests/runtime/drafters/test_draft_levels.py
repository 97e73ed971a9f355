"""Levels of static trees: every child has its own random number, and tokens are as frequent as probable."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import LevelSampler, draft_levels
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain

random_drafts = pytest.mark.parametrize("rule", ["sequoia", "specinfer"])


def draft_tokens(tree, rule, logits, seeds):
    """Return the tokens (B, n) of trees if every distribution is that of the logits."""
    model = SimpleNamespace(name="draft", device=CPU, config=SimpleNamespace(vocabulary=len(logits)))
    sampler = LevelSampler(model, rule=RULES[rule], sampling=Sampling(1.0), max_nodes=tree.nodes)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    sampler.begin(tree, [0] * len(seeds))
    for level in draft_levels(tree, CPU):
        sampler.fill(level, logits.expand(*sampler.tokens_of(level).shape, -1), generators)
    return torch.stack([proposal.tokens for proposal in sampler.proposals()])


@random_drafts
@pytest.mark.parametrize("tree", [chain(4), TokenTree([-1, 0, 0, 1, 1, 2, 2])], ids=["only children", "siblings"])
def test_every_child_has_its_own_random_number(rule, tree):
    tokens = draft_tokens(tree, rule, torch.zeros(50_000), [3, 4, 5])[:, 1:]
    assert tokens.unique().numel() == tokens.numel() == 3 * (tree.nodes - 1)


@random_drafts
def test_a_sequences_tokens_do_not_depend_on_the_batch(rule):
    tree, logits = TokenTree([-1, 0, 0, 1, 2, 3, 3, 4, 5]), torch.arange(40) / 20
    batch = draft_tokens(tree, rule, logits, [7, 8, 9])
    for row, seed in zip(batch, [7, 8, 9], strict=True):
        assert torch.equal(row, draft_tokens(tree, rule, logits, [seed])[0])
    assert not torch.equal(batch[0], batch[1])


@random_drafts
def test_tokens_are_as_frequent_as_probable(rule):
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0, -torch.inf])
    tokens = draft_tokens(TokenTree([-1, 0, 0, 1, 2, 3]), rule, logits, range(3000))
    for node in (1, 3, 4, 5):  # the second child of the root depends on the first
        frequency = tokens[:, node].bincount(minlength=5) / len(tokens)
        torch.testing.assert_close(frequency, logits.softmax(0), rtol=0, atol=0.03)
