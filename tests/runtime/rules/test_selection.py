"""The reach of nodes is how often walks accept them: against every outcome of the noise, each with its probability."""

from itertools import product

import numpy as np
import pytest

from treeopt.runtime.rules.layout import HostTree
from treeopt.runtime.rules.rule import LeavesFirst, Longest, TopDown
from treeopt.trees import TokenTree, chain, level_widths

TREES = [
    chain(0),
    chain(3),
    level_widths([3]),
    TokenTree([-1, 0, 0, 1, 1, 2]),
    TokenTree([-1, 0, 0, 0, 1, 2, 5]),  # three levels below a later child
    TokenTree([-1, 0, 1, 1, 2, 2, 4]),
]


def every_outcome(selection, tree, acceptance):
    """Return the probability that the accepted path holds each node, from the tree itself."""
    reach = np.zeros(len(acceptance))
    for accepted in product([True, False], repeat=len(acceptance)):
        chances = [p if yes else 1 - p for p, yes in zip(acceptance, accepted, strict=True)]
        if (weight := float(np.prod(chances))) > 0:
            u = [0.0 if yes else 1.0 for yes in accepted]
            reach[list(tree.path(selection.last_node(tree, acceptance, u)))] += weight
    return reach


@pytest.mark.parametrize("selection", [TopDown(), LeavesFirst()])
@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_reach_is_how_often_a_walk_accepts_each_node(selection, tree):
    rng, host_tree = np.random.default_rng(0), HostTree(tree)
    for _ in range(3):
        acceptance = [1.0, *rng.uniform(0, 1, tree.nodes - 1)]
        found = selection.reach(host_tree, acceptance)
        np.testing.assert_allclose(found, every_outcome(selection, host_tree, acceptance), atol=1e-12)
        assert found[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("likelihood", "last"),
    [
        ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0),
        ([1.0, 0.5, 0.4, 0.0, 0.0, 0.1], 5),  # longer, though less likely
        ([1.0, 0.5, 0.4, 0.1, 0.2, 0.1], 4),  # of equally long ones the likeliest
        ([1.0, 0.4, 0.5, 0.0, 0.0, 0.0], 2),
    ],
)
def test_the_longest_path_is_taken_and_of_equal_ones_the_likeliest(likelihood, last):
    tree = HostTree(TokenTree([-1, 0, 0, 1, 1, 2]))
    assert Longest().last_node(tree, likelihood, ()) == last
    assert np.flatnonzero(Longest().reach(tree, likelihood)).tolist() == list(tree.path(last))
