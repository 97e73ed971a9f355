"""The verifier's acceptance, distributions and verdicts equal those of rules written once more from the papers."""

import numpy as np
import pytest
import torch

from tests.support.enumeration import CPU, end_probabilities
from tests.support.twins import TWINS, block
from treeopt.runtime import Verifier, draw, verify
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain

all_rules = pytest.mark.parametrize("rule", RULES)
both_verifiers = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])


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


def draw_tokens(rule, tree, distributions, generator):
    counts = torch.from_numpy(tree.child_counts.astype(np.int64))
    return torch.cat([torch.zeros(1, dtype=torch.int64), draw(rule, torch.as_tensor(distributions), counts, generator)])


def random_step(rule, rng, generator, tree=None, *, zeros=True):
    vocabulary = int(rng.integers(2, 8))
    tree = tree or random_tree(rng, int(rng.integers(1, 16)), vocabulary)
    draft, target = (random_distributions(rng, tree.nodes, vocabulary, zeros=zeros) for _ in range(2))
    if rng.random() < 0.2:
        draft = target.copy()
    return tree, draw_tokens(rule, tree, draft, generator), draft, target


def difference(rule, twin, tree, tokens, draft, target, *, on_host=True):
    verifier = Verifier(RULES[rule], draft.shape[1], CPU, on_host=on_host)
    verifier.test([tree], tokens, torch.from_numpy(draft), torch.from_numpy(target))
    expected = twin(tree, tokens.tolist(), draft.tolist(), target.tolist())
    assert abs(expected.sum() - 1) < 1e-12
    return np.abs(end_probabilities(verifier, tree)[0] - expected).max()


@both_verifiers
@all_rules
def test_outcomes_equal_the_twins(rule, on_host):
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    for _ in range(150):
        assert difference(rule, TWINS[rule], *random_step(rule, rng, generator), on_host=on_host) < 1e-12


@both_verifiers
@pytest.mark.parametrize("length", [1, 2, 5])
def test_traversal_of_a_chain_is_block_verification(length, on_host):
    rng, generator = np.random.default_rng(length), torch.Generator().manual_seed(length)
    for _ in range(40):
        step = random_step("traversal", rng, generator, chain(length))
        assert difference("traversal", block, *step, on_host=on_host) < 1e-12


@pytest.mark.parametrize(
    ("rule", "other"), [("sequoia", "specinfer"), ("specinfer", "target"), ("traversal", "sequoia")]
)
def test_the_comparison_tells_rules_apart(rule, other):
    rng, generator = np.random.default_rng(7), torch.Generator().manual_seed(7)
    sampled_by = "sequoia" if rule == "specinfer" else rule  # distinct siblings, so that the other rule can test them
    steps = [random_step(sampled_by, rng, generator, zeros=False) for _ in range(60)]
    assert max(difference(rule, TWINS[other], *step) for step in steps) > 1e-2


@both_verifiers
@all_rules
def test_a_batch_has_the_verdicts_of_each_sequence_alone(rule, on_host):
    """Of one tree and of several, in batches that grow and shrink, next to fresh buffers."""
    rng, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    batch = Verifier(RULES[rule], 5, CPU, on_host=on_host)
    for sizes in ((1, 1), (2,), (7, 7, 7), (7,), (1, 7, 2), (12, 3)):
        by_size = {nodes: random_tree(rng, nodes, 5) for nodes in sizes}
        trees = [by_size[nodes] for nodes in sizes]
        probs = [[torch.from_numpy(random_distributions(rng, tree.nodes, 5)) for _ in range(2)] for tree in trees]
        tokens = [draw_tokens(rule, tree, draft, generator) for tree, (draft, _) in zip(trees, probs, strict=True)]
        probs[0][1][-1] = torch.nan
        accepted = batch.test(trees, torch.cat(tokens), *map(torch.cat, zip(*probs, strict=True))).split(sizes)
        verdicts = batch.verdicts([torch.Generator().manual_seed(sequence) for sequence in range(len(sizes))])
        for sequence, verdict in enumerate(verdicts):
            alone = Verifier(RULES[rule], 5, CPU, on_host=on_host)
            expected = alone.test([trees[sequence]], tokens[sequence], *probs[sequence])
            assert torch.equal(accepted[sequence].nan_to_num(9.0), expected.nan_to_num(9.0))
            alone_verdict = alone.verdict(torch.Generator().manual_seed(sequence))
            assert alone_verdict.finite == verdict.finite
            assert verdict == alone_verdict or not verdict.finite


@pytest.mark.parametrize("entry", ["verdict on the host", "verdict with tensors", "verify"])
@all_rules
def test_verdicts_are_as_frequent_as_probable(rule, entry, chi_squared):
    """1500 verdicts: the same test finds a distribution whose tokens are rotated."""
    vocabulary, tree = 4, TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])
    rng, generator = np.random.default_rng(11), torch.Generator().manual_seed(11)
    draft, target = (rng.dirichlet(np.full(vocabulary, 1.0), tree.nodes) for _ in range(2))
    tokens = draw_tokens(rule, tree, draft, generator)
    distributions = torch.from_numpy(draft), torch.from_numpy(target)
    verifier = Verifier(RULES[rule], vocabulary, CPU, on_host=entry == "verdict on the host")
    verifier.test([tree], tokens, *distributions)
    counts = np.zeros((tree.nodes, vocabulary))
    for _ in range(1500):
        if entry == "verify":
            verdict = verify(rule, tree, tokens, *distributions, generator, lossy=True)
        else:
            verdict = verifier.verdict(generator)
        assert verdict.nodes[0] == 0
        assert tree.parents[list(verdict.nodes[1:])].tolist() == list(verdict.nodes[:-1])
        counts[verdict.nodes[-1], verdict.bonus] += 1
    expected = TWINS[rule](tree, tokens.tolist(), draft.tolist(), target.tolist())
    assert chi_squared(counts, expected / expected.sum()) > 1e-3
    if rule != "typical":
        rotated = np.roll(expected, 1, axis=1)
        assert chi_squared(counts, rotated / rotated.sum()) < 1e-9
