"""How levels of static trees are sampled: an only child takes one number of its own, siblings race for their places."""

import numpy as np
import pytest
import torch

from tests.support.enumeration import CPU
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters import draft_levels
from treeopt.runtime.drafters.draft_levels import DraftBuffers, TreeDrafts
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.on_host import sample_each
from treeopt.trees import TokenTree, chain, level_widths

SAMPLING = Sampling(1.0)
random_drafts = pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.random_drafts])


def drafted(tree, rule, logits, seeds):
    """Return the tokens (texts, n) that are drafted where every distribution is that of the logits."""
    buffers = DraftBuffers(
        len(seeds), tree.nodes, tree.nodes, rule=RULES[rule], sampling=SAMPLING, vocabulary=len(logits), device=CPU
    )
    drafts, noise = TreeDrafts(tree, len(seeds), buffers), [torch.Generator().manual_seed(seed) for seed in seeds]
    drafts.begin([0] * len(seeds), noise)
    for level in drafts.levels:
        level.fill(logits.expand(sum(map(len, level.fed())), -1).contiguous(), noise)
    return torch.stack(drafts.tokens)


def tokens_of(distribution, share):
    """Return the tokens that a share may stand for, by sums in plain order; two where it stands at their border."""
    cumulative = np.cumsum(distribution, dtype=np.float64)
    found = [np.searchsorted(cumulative, share * cumulative[-1] + shift, side="right") for shift in (-1e-9, 1e-9)]
    return {int(each) for each in found}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_stands_for_the_token_up_to_which_so_much_lies(dtype):
    rng = np.random.default_rng(0)
    distributions = rng.dirichlet(np.full(9, 0.3), (4, 3)).astype(dtype)
    distributions[rng.random(distributions.shape) < 0.2] = 0
    room, tokens = rng.random((4, 7)), np.full((4, 3), -1)
    for shares in (room[:, 2:5], room[:, :3].copy()):
        sample_each(distributions, shares, tokens)
        for text, node in np.ndindex(4, 3):
            assert tokens[text, node] in tokens_of(distributions[text, node], shares[text, node])
            assert distributions[text, node, tokens[text, node]] > 0


def test_what_is_not_finite_is_some_token():
    tokens = np.full((1, 2), -1)
    sample_each(np.array([[[np.nan] * 3, [0.0] * 3]], np.float32), np.full((1, 2), 0.5), tokens)
    assert tokens.tolist() == [[2, 2]]


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


def test_no_token_of_the_vocabulary_takes_noise_where_no_siblings_race(monkeypatch):
    monkeypatch.setattr(draft_levels, "fill_speeds", None)
    drafted(chain(3), "sequoia", torch.zeros(5), [0])
    with pytest.raises(TypeError):
        drafted(level_widths([2, 1]), "sequoia", torch.zeros(5), [0])


def test_noise_has_53_bits():
    buffers = DraftBuffers(1, 2, 2, rule=RULES["sequoia"], sampling=SAMPLING, vocabulary=5, device=CPU)
    assert buffers.shares.dtype == buffers.speeds.dtype == torch.float64
