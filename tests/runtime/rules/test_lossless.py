"""Verification leaves the target's distribution untouched, by enumeration of every draft and every outcome of the verifier."""

import numpy as np
import pytest

from tests.support.enumeration import error, expected_reach
from tests.support.invented_texts import Text, adversarial, dirichlet, with_zeros
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths

LOSSLESS = [rule for rule in RULES if rule not in LOSSY_RULES]
all_rules = pytest.mark.parametrize("rule", LOSSLESS)
both_judgings = pytest.mark.parametrize("on_host", [True, False], ids=["on the host", "with tensors"])
DISTRIBUTIONS = list(adversarial(4))
KINDS = ["random", "disjoint", "both one-hot", "zeros in both", "both far apart"]
"""Distributions that differ in kind: enough where the same verifier runs with tensors."""
all_distributions = pytest.mark.parametrize(
    ("on_host", "distributions"),
    [
        pytest.param(True, DISTRIBUTIONS, id="on the host"),
        pytest.param(False, KINDS, id="with tensors"),
    ],
)

NARROW = {
    "root alone": chain(0),
    "chain of 2": chain(2),
    "chain of 3": chain(3),
    "two children": level_widths([2]),
    "three children": level_widths([3]),
    "two chains": TokenTree([-1, 0, 0, 1, 2]),
    "later child has the child": TokenTree([-1, 0, 0, 2]),
}
WIDE = {
    "binary": k_ary(2, 2),
    "sparse": TokenTree([-1, 0, 0, 0, 1, 1, 2]),  # 3 children, of which 2, 1 and 0 below
    "deep first child": TokenTree([-1, 0, 0, 1, 1, 3]),
    "deep last child": TokenTree([-1, 0, 0, 2, 2, 4]),
}


def errors(rule, tree, size, distributions, on_host):
    """Return by how much the step is off where it is, by the name of the distributions."""
    pairs = adversarial(size)
    texts = {name: Text(*pairs[name], size, tree.max_depth) for name in distributions}
    found = {name: error(RULES[rule], tree, text, on_host=on_host) for name, text in texts.items()}
    return {name: off for name, off in found.items() if off >= 1e-12}


def trees(named):
    return pytest.mark.parametrize("tree", named.values(), ids=named.keys())


@all_distributions
@all_rules
@trees(NARROW)
def test_a_step_follows_the_distribution_of_the_target(rule, tree, distributions, on_host):
    assert errors(rule, tree, 4, distributions, on_host) == {}


@all_distributions
@all_rules
@trees(WIDE)
def test_a_step_of_a_wide_tree_follows_it_too(rule, tree, distributions, on_host):
    assert errors(rule, tree, 3, distributions, on_host) == {}


@all_rules
@pytest.mark.parametrize(
    ("vocabulary", "tree"),
    [(2, level_widths([2])), (2, k_ary(2, 3)), (3, level_widths([3])), (3, k_ary(3, 2)), (4, level_widths([4, 4]))],
)
@pytest.mark.parametrize("zeros", [0, 1])
def test_siblings_may_use_up_the_vocabulary(rule, vocabulary, tree, zeros):
    if rule == "specinfer" and tree.nodes > 6:
        tree = level_widths([vocabulary, 1])  # siblings may be alike, so there are too many drafts
    text = Text(dirichlet(30, vocabulary), with_zeros(31, vocabulary, zeros), vocabulary, tree.max_depth)
    assert error(RULES[rule], tree, text) < 1e-12


@both_judgings
@all_rules
@pytest.mark.parametrize("seed", range(4))
def test_random_trees(rule, seed, on_host):
    generator = np.random.default_rng(seed)
    tree = None
    while tree is None or tree.max_depth > 3 or tree.child_counts.max() > 3 or np.count_nonzero(tree.child_counts) > 3:
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 7))])
    text = Text(dirichlet(seed, 3), with_zeros(seed + 100, 3, seed % 2), 3, tree.max_depth)
    assert error(RULES[rule], tree, text, on_host=on_host) < 1e-12


@all_rules
def test_any_children_that_are_not_alike_will_do_for_the_target_rule_only(rule):
    text = Text(dirichlet(1, 4), dirichlet(2, 4), 4, 2)

    def chosen(distribution, count):
        return [(tuple(np.argsort(distribution, kind="stable")[:count].tolist()), 1.0)]  # the least likely first

    assert (error(RULES[rule], TokenTree([-1, 0, 0, 1, 1]), text, chosen) < 1e-12) == (rule == "target")


class TestReach:
    """A node's reach is fixed by its ancestors and by the ranks above it, so that trees can be planned node by node."""

    SMALL = TokenTree([-1, 0, 0, 1])
    LARGER = TokenTree([-1, 0, 0, 0, 1, 2, 5])
    KEPT = (0, 1, 2, 4)  # the nodes of SMALL in LARGER

    def difference(self, rule, distributions, on_host=True):
        text = Text(*distributions, 3, 3)
        small, larger = (expected_reach(RULES[rule], tree, text, on_host=on_host) for tree in (self.SMALL, self.LARGER))
        return np.abs(small - larger[list(self.KEPT)]).max()

    @both_judgings
    @all_rules
    @pytest.mark.parametrize("distributions", ["random", "zeros in both", "draft far apart"])
    def test_what_is_below_or_drawn_later_does_not_change_it(self, rule, distributions, on_host):
        assert self.difference(rule, adversarial(3)[distributions], on_host) < 1e-12

    def test_the_same_check_fails_where_a_longer_path_wins(self):
        assert self.difference("typical", (dirichlet(3, 3, 3.0), dirichlet(4, 3, 3.0))) > 1e-2
