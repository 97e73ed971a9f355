"""The enumeration itself: mistakes that other programs have made do not get past it."""

from dataclasses import replace

import pytest

from tests.support.broken import BROKEN_ORDERS, BROKEN_TESTS, SEQUOIA, rejection, traversal
from tests.support.enumeration import error
from tests.support.invented_texts import Text, adversarial, dirichlet, with_zeros
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree, chain, k_ary, level_widths

TREES = {
    "three children": level_widths([3]),
    "binary": k_ary(2, 2),
    "two sibling groups": TokenTree([-1, 0, 0, 0, 1, 1]),
}
all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
WIDE_MARGIN = 1e-3
"""Nine powers of ten above what honest rules are allowed."""


def text_of(tree):
    """Return a text of 4 tokens, so that something is left of 3 siblings."""
    return Text(*adversarial(4)["random"], 4, tree.max_depth)


@pytest.mark.parametrize("rule", BROKEN_TESTS.values(), ids=BROKEN_TESTS.keys())
def test_a_mistake_in_a_rule_is_found(rule):
    tree = TREES["two sibling groups"]
    assert error(rule, tree, text_of(tree), on_host=False) > WIDE_MARGIN


@pytest.mark.parametrize(
    "name", ["sequoia, ratio upside down", "sequoia, likeliest accepted", "traversal, selected from the top"]
)
def test_a_mistake_is_found_on_a_chain(name):
    assert error(BROKEN_TESTS[name], chain(2), Text(*adversarial(4)["random"], 4, 2), on_host=False) > WIDE_MARGIN


@pytest.mark.parametrize(("rule", "orders"), BROKEN_ORDERS.values(), ids=BROKEN_ORDERS.keys())
def test_children_chosen_by_their_own_probability_are_found(rule, orders):
    tree = TREES["three children"]
    assert error(rule, tree, text_of(tree), orders) > WIDE_MARGIN


@all_trees
@pytest.mark.parametrize("distributions", ["random", "near"])
def test_the_lossy_rule_is_found(tree, distributions):
    text = Text(*adversarial(4)[distributions], 4, tree.max_depth)
    assert error(RULES["typical"], tree, text) > 0.01


def test_not_falling_back_to_the_untried_is_found():
    text = Text(dirichlet(31, 4), with_zeros(32, 4, 2), 4, 1)
    assert (
        error(replace(SEQUOIA, accept_test=rejection(fall_back=False)), level_widths([4]), text, on_host=False)
        > WIDE_MARGIN
    )


@all_trees
@pytest.mark.parametrize(("rule", "test"), [("sequoia", rejection()), ("traversal", traversal())])
@pytest.mark.parametrize("distributions", ["random", "two tokens never drafted"])
def test_the_rules_written_once_more_pass(tree, rule, test, distributions):
    text = Text(*adversarial(4)[distributions], 4, tree.max_depth)
    assert error(replace(RULES[rule], accept_test=test), tree, text, on_host=False) < 1e-12
