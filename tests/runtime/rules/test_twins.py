"""The verifier's acceptance, distributions and verdicts equal those of rules written once more from the papers."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.support.enumeration import CPU, end_probabilities
from tests.support.twins import TWINS, block
from treeopt.runtime import Verifier, draw, verify
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain

all_rules = pytest.mark.parametrize("rule", RULES)
both_judgings = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])


def random_tree(rng, nodes, most_children):
    """Return a random tree in which no node has more children than a vocabulary has tokens."""
    parents, counts = [-1], [0]
    while len(parents) < nodes:
        parent = int(rng.integers(len(parents)))
        if counts[parent] < most_children:
            parents.append(parent)
            counts[parent] += 1
            counts.append(0)
    return TokenTree.ordered(parents)


def random_distributions(rng, nodes, vocabulary, *, zeros=True):
    """Return distributions (n, V): even ones, peaked ones, ones with zeros."""
    weights = rng.dirichlet(np.full(vocabulary, rng.choice([0.05, 0.3, 1.0, 20.0])), nodes) + 1e-12
    if zeros and rng.random() < 0.4:
        weights *= rng.random(weights.shape) < 0.6
        weights[weights.sum(1) == 0] = 1.0
    return weights / weights.sum(1, keepdims=True)


def drafted(rule, tree, distributions, generator):
    """Return a token per node, sampled in the way of a rule."""
    counts = torch.from_numpy(tree.child_counts.astype(np.int64))
    return torch.cat([torch.zeros(1, dtype=torch.int64), draw(rule, torch.tensor(distributions), counts, generator)])


def step(rule, rng, generator, tree=None, *, zeros=True):
    vocabulary = int(rng.integers(2, 8))
    tree = tree or random_tree(rng, int(rng.integers(1, 16)), vocabulary)
    draft, target = (random_distributions(rng, tree.nodes, vocabulary, zeros=zeros) for _ in range(2))
    if rng.random() < 0.2:
        draft = target.copy()
    return tree, drafted(rule, tree, draft, generator), draft, target


def difference(rule, twin, tree, tokens, draft, target, *, on_host=True):
    verifier = Verifier(RULES[rule], draft.shape[1], CPU, on_host=on_host)
    verifier.test([tree], tokens, torch.from_numpy(draft), torch.from_numpy(target))
    expected = twin(tree, tokens.tolist(), draft.tolist(), target.tolist())
    assert abs(expected.sum() - 1) < 1e-12
    return np.abs(end_probabilities(verifier, tree) - expected).max()


@both_judgings
@all_rules
@pytest.mark.parametrize("seed", range(4))
def test_outcomes_equal_the_twins(rule, seed, on_host):
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for _ in range(100):
        assert difference(rule, TWINS[rule], *step(rule, rng, generator), on_host=on_host) < 1e-12


@both_judgings
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
def test_on_a_chain_traversal_is_block_verification(length, on_host):
    rng, generator = np.random.default_rng(length), torch.Generator().manual_seed(length)
    for _ in range(60):
        assert (
            difference("traversal", block, *step("traversal", rng, generator, chain(length)), on_host=on_host) < 1e-12
        )


@pytest.mark.parametrize(
    ("rule", "other"), [("sequoia", "specinfer"), ("specinfer", "target"), ("traversal", "sequoia")]
)
def test_the_same_comparison_tells_rules_apart(rule, other):
    rng, generator = np.random.default_rng(7), torch.Generator().manual_seed(7)
    sampled_by = "sequoia" if rule == "specinfer" else rule  # no siblings alike, so that the other rule can test them
    found = [difference(rule, TWINS[other], *step(sampled_by, rng, generator, zeros=False)) for _ in range(60)]
    assert max(found) > 1e-2


@both_judgings
def test_a_buffer_left_by_one_draft_does_not_change_the_next(on_host):
    tree = TokenTree([-1, 0, 0, 0, 1, 1, 4])
    rng, generator = np.random.default_rng(8), torch.Generator().manual_seed(8)
    for rule in RULES:
        kept = Verifier(RULES[rule], 5, CPU, on_host=on_host)
        for _ in range(20):
            draft, target = (random_distributions(rng, tree.nodes, 5) for _ in range(2))
            tokens = drafted(rule, tree, draft, generator)
            fresh = Verifier(RULES[rule], 5, CPU, on_host=on_host)
            for verifier in (kept, fresh):
                verifier.test([tree], tokens, torch.from_numpy(draft), torch.from_numpy(target))
            assert np.array_equal(end_probabilities(kept, tree), end_probabilities(fresh, tree))


@both_judgings
@all_rules
def test_a_batch_comes_to_what_each_sequence_comes_to_alone(rule, on_host):
    """Of one tree and of several, in batches that grow and shrink."""
    rng, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    several, alone = (Verifier(RULES[rule], 5, CPU, on_host=on_host) for _ in range(2))
    for sizes in ((1, 1), (2,), (7, 7, 7), (7,), (1, 7, 2), (12, 3)):
        kept = {nodes: random_tree(rng, nodes, 5) for nodes in sizes}
        trees = [kept[nodes] for nodes in sizes]
        drafts = [[random_distributions(rng, tree.nodes, 5) for _ in range(2)] for tree in trees]
        tokens = [drafted(rule, tree, draft, generator) for tree, (draft, _) in zip(trees, drafts, strict=True)]
        probs = [[torch.from_numpy(each) for each in draft] for draft in drafts]
        probs[0][1][-1] = torch.nan
        accepted = several.test(trees, torch.cat(tokens), *map(torch.cat, zip(*probs, strict=True))).split(sizes)
        verdicts = several.verdicts([torch.Generator().manual_seed(sequence) for sequence in range(len(sizes))])
        for sequence, verdict in enumerate(verdicts):
            expected = alone.test([trees[sequence]], tokens[sequence], *probs[sequence])
            assert torch.equal(accepted[sequence].nan_to_num(9.0), expected.nan_to_num(9.0))
            again = alone.verdict(torch.Generator().manual_seed(sequence))
            assert again.finite == verdict.finite
            assert verdict == again or not verdict.finite


@all_rules
@pytest.mark.parametrize("entry", ["verdict on the host", "verdict with tensors", "verify"])
def test_verdicts_are_as_frequent_as_they_should_be(rule, entry, chi_squared):
    samples, vocabulary = 4000, 4
    tree = TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])
    rng, generator = np.random.default_rng(11), torch.Generator().manual_seed(11)
    draft, target = (rng.dirichlet(np.full(vocabulary, 1.0), tree.nodes) for _ in range(2))
    tokens = drafted(rule, tree, draft, generator)
    distributions = torch.from_numpy(draft), torch.from_numpy(target)
    verifier = Verifier(RULES[rule], vocabulary, CPU, on_host=entry == "verdict on the host")
    verifier.test([tree], tokens, *distributions)
    verdicts, once = (
        partial(verifier.verdict, generator),
        partial(verify, rule, tree, tokens, *distributions, generator, lossy=True),
    )
    sample = once if entry == "verify" else verdicts
    counts = np.zeros((tree.nodes, vocabulary))
    for _ in range(samples // 4 if entry == "verify" else samples):
        verdict = sample()
        path = verdict.path.tolist()
        assert path[0] == 0
        assert [int(tree.parents[node]) for node in path[1:]] == path[:-1]
        counts[path[-1], verdict.bonus] += 1
    expected = TWINS[rule](tree, tokens.tolist(), draft.tolist(), target.tolist())
    assert chi_squared(counts, expected / expected.sum()) > 1e-3
    if rule != "typical":
        off = np.roll(expected, 1, axis=1)
        assert chi_squared(counts, off / off.sum()) < 1e-9  # the same test finds another distribution
