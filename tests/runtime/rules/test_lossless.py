"""Verification keeps the target's distribution, by enumeration of every draft and every outcome of the verifier."""

from functools import cache

import numpy as np
import pytest

from tests.support.enumeration import error, expected_reach
from tests.support.invented_distributions import PairDistributions, adversarial, dirichlet, with_zeros
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths

all_rules = pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in LOSSY_RULES])
both_verifiers = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])
NARROW = {
    "root alone": chain(0),
    "chain of 2": chain(2),
    "chain of 3": chain(3),
    "three children": level_widths([3]),
    "two chains": TokenTree([-1, 0, 0, 1, 2]),
    "later child has the child": TokenTree([-1, 0, 0, 2]),
}
WIDE = {
    "binary": k_ary(2, 2),
    "sparse": TokenTree([-1, 0, 0, 0, 1, 1, 2]),  # 3 children, with 2, 1 and 0 below
    "deep first child": TokenTree([-1, 0, 0, 1, 1, 3]),
    "deep last child": TokenTree([-1, 0, 0, 2, 2, 4]),
}
TREES = [(tree, 4) for tree in NARROW.values()] + [(tree, 3) for tree in WIDE.values()]


@cache
def adversarial_pairs(size, depth):
    return {name: PairDistributions(*pair, size, depth) for name, pair in adversarial(size).items()}


@both_verifiers
@all_rules
@pytest.mark.parametrize(("tree", "size"), TREES, ids=[*NARROW, *WIDE])
def test_a_step_follows_the_targets_distribution(rule, tree, size, on_host):
    pairs = adversarial_pairs(size, tree.max_depth)
    errors = {name: error(RULES[rule], tree, pair, on_host=on_host) for name, pair in pairs.items()}
    assert {name: value for name, value in errors.items() if value >= 1e-12} == {}


@all_rules
@pytest.mark.parametrize(
    ("vocabulary", "tree"),
    [(2, level_widths([2])), (2, k_ary(2, 3)), (3, level_widths([3])), (3, k_ary(3, 2)), (4, level_widths([4, 4]))],
)
@pytest.mark.parametrize("zeros", [0, 1])
def test_siblings_may_use_up_the_vocabulary(rule, vocabulary, tree, zeros):
    if rule == "specinfer" and tree.nodes > 6:
        tree = level_widths([vocabulary, 1])  # siblings may be equal, so there are too many drafts
    pair = PairDistributions(dirichlet(30, vocabulary), with_zeros(31, vocabulary, zeros), vocabulary, tree.max_depth)
    assert error(RULES[rule], tree, pair) < 1e-12


@both_verifiers
@all_rules
@pytest.mark.parametrize("seed", range(4))
def test_a_step_of_a_random_tree_follows_the_targets_distribution(rule, seed, on_host):
    generator = np.random.default_rng(seed)
    tree = None
    while tree is None or tree.max_depth > 3 or tree.child_counts.max() > 3 or np.count_nonzero(tree.child_counts) > 3:
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 7))])
    pair = PairDistributions(dirichlet(seed, 3), with_zeros(seed + 100, 3, seed % 2), 3, tree.max_depth)
    assert error(RULES[rule], tree, pair, on_host=on_host) < 1e-12


@all_rules
def test_only_the_target_rule_takes_any_distinct_children(rule):
    pair = PairDistributions(dirichlet(1, 4), dirichlet(2, 4), 4, 2)

    def least_likely(distribution, count):
        return [(tuple(np.argsort(distribution, kind="stable")[:count].tolist()), 1.0)]

    assert (error(RULES[rule], TokenTree([-1, 0, 0, 1, 1]), pair, least_likely) < 1e-12) == (rule == "target")


class TestReach:
    """A node's reach follows from the ranks along its path, so trees can be planned node by node."""

    SMALL = TokenTree([-1, 0, 0, 1])
    LARGE = TokenTree([-1, 0, 0, 0, 1, 2, 5])
    SHARED = (0, 1, 2, 4)  # the nodes of SMALL in LARGE

    def difference(self, rule, distributions, on_host=True):
        pair = PairDistributions(*distributions, 3, 3)
        small, large = (expected_reach(RULES[rule], tree, pair, on_host=on_host) for tree in (self.SMALL, self.LARGE))
        return np.abs(small - large[list(self.SHARED)]).max()

    @both_verifiers
    @all_rules
    @pytest.mark.parametrize("distributions", ["random", "zeros in both", "draft far apart"])
    def test_other_branches_do_not_change_reach(self, rule, distributions, on_host):
        assert self.difference(rule, adversarial(3)[distributions], on_host) < 1e-12

    def test_reach_of_the_lossy_rule_depends_on_other_branches(self):
        assert self.difference("typical", (dirichlet(3, 3, 3.0), dirichlet(4, 3, 3.0))) > 1e-2
