"""How levels of static trees are sampled: an only child takes one number of its own, siblings race for their places."""

import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeBatch
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain

SAMPLING = Sampling(1.0)
random_drafts = pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.random_drafts])


def drafted(tree, rule, logits, seeds):
    """Return the tokens (texts, n) that are drafted where every distribution is that of the logits."""
    buffers = DraftBuffers(
        len(seeds), tree.nodes, tree.nodes, rule=RULES[rule], sampling=SAMPLING, vocabulary=len(logits), device=CPU
    )
    drafts, generators = TreeBatch(tree, len(seeds), buffers), [torch.Generator().manual_seed(seed) for seed in seeds]
    drafts.begin([0] * len(seeds))
    for level in drafts.levels:
        level.fill(logits.expand(sum(map(len, level.fed_tokens())), -1).contiguous(), generators)
    return torch.stack(drafts.tokens)


@random_drafts
@pytest.mark.parametrize("tree", [chain(4), TokenTree([-1, 0, 0, 1, 1, 2, 2])], ids=["only children", "siblings"])
def test_every_child_has_noise_of_its_own_in_every_level_and_text(rule, tree):
    found = drafted(tree, rule, torch.zeros(100_000), [3, 4, 5])[:, 1:]
    assert found.unique().numel() == found.numel() == 3 * (tree.nodes - 1)


@random_drafts
def test_a_texts_tokens_do_not_depend_on_the_others(rule):
    tree, logits = TokenTree([-1, 0, 0, 1, 2, 3, 3, 4, 5]), torch.arange(40) / 20
    together = drafted(tree, rule, logits, [7, 8, 9])
    for row, seed in zip(together, [7, 8, 9], strict=True):
        assert torch.equal(row, drafted(tree, rule, logits, [seed])[0])
    assert not torch.equal(together[0], together[1])


@random_drafts
def test_tokens_are_as_frequent_as_they_are_probable(rule):
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0, -torch.inf])
    tree = TokenTree([-1, 0, 0, 1, 2, 3])
    tokens = torch.cat([drafted(tree, rule, logits, range(start, start + 1000)) for start in range(0, 4000, 1000)])
    for node in (1, 3, 4, 5):  # the second child of the root is sampled from what the first leaves
        frequency = tokens[:, node].bincount(minlength=5) / len(tokens)
        torch.testing.assert_close(frequency, logits.softmax(0), rtol=0, atol=0.03)
