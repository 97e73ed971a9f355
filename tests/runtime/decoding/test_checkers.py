"""The enumeration finds mistakes that other programs have made."""

from dataclasses import replace

import pytest

from tests.support.broken import BROKEN_ORDERS, BROKEN_TESTS, SEQUOIA, rejection, traversal
from tests.support.enumeration import error
from tests.support.invented_distributions import PairDistributions, adversarial, dirichlet, with_zeros
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths

TREES = (level_widths([3]), k_ary(2, 2), TokenTree([-1, 0, 0, 0, 1, 1]))
MARGIN = 1e-3
"""Nine orders of magnitude above the error that correct rules are allowed."""


def make_pair(tree, distributions="random"):
    """Return distributions over 4 tokens, one more than there are siblings."""
    return PairDistributions(*adversarial(4)[distributions], 4, tree.max_depth)


@pytest.mark.parametrize("rule", BROKEN_TESTS.values(), ids=BROKEN_TESTS.keys())
def test_a_mistake_in_a_rule_is_found(rule):
    assert error(rule, TREES[2], make_pair(TREES[2]), on_host=False) > MARGIN


@pytest.mark.parametrize(
    "name", ["sequoia, ratio upside down", "sequoia, likeliest accepted", "traversal, selected from the top"]
)
def test_a_mistake_is_found_on_a_chain(name):
    assert error(BROKEN_TESTS[name], chain(2), make_pair(chain(2)), on_host=False) > MARGIN


@pytest.mark.parametrize(("rule", "orders"), BROKEN_ORDERS.values(), ids=BROKEN_ORDERS.keys())
def test_children_chosen_by_their_own_probability_are_found(rule, orders):
    assert error(rule, TREES[0], make_pair(TREES[0]), orders) > MARGIN


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("distributions", ["random", "near"])
def test_the_lossy_rule_is_found(tree, distributions):
    assert error(RULES["typical"], tree, make_pair(tree, distributions)) > 0.01


def test_sampling_tried_tokens_from_an_empty_draft_is_found():
    rule = replace(SEQUOIA, accept_test=rejection(fall_back=False))
    pair = PairDistributions(dirichlet(31, 4), with_zeros(32, 4, 2), 4, 1)
    assert error(rule, level_widths([4]), pair, on_host=False) > MARGIN


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("rule", "accept_test"), [("sequoia", rejection()), ("traversal", traversal())])
@pytest.mark.parametrize("distributions", ["random", "two tokens never drafted"])
def test_correct_rules_pass(tree, rule, accept_test, distributions):
    rule = replace(RULES[rule], accept_test=accept_test)
    assert error(rule, tree, make_pair(tree, distributions), on_host=False) < 1e-12
