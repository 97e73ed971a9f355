"""Named shapes: sizes, widths and invalid arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import InvalidValueError
from treeopt.trees import chain, chains, k_ary, level_widths


@pytest.mark.parametrize(
    ("tree", "parents"),
    [
        (chain(0), [-1]),
        (chain(1), [-1, 0]),
        (chain(3), [-1, 0, 1, 2]),
        (chains(3, 0), [-1]),
        (chains(3, 1), [-1, 0, 0, 0]),
        (chains(2, 3), [-1, 0, 0, 1, 2, 3, 4]),
        (k_ary(3, 0), [-1]),
        (k_ary(3, 1), [-1, 0, 0, 0]),
        (k_ary(2, 2), [-1, 0, 0, 1, 1, 2, 2]),
        (level_widths([]), [-1]),
        (level_widths([2, 3]), [-1, 0, 0, 1, 1, 2]),
        (level_widths([3, 2]), [-1, 0, 0, 0, 1, 2]),
        (level_widths([1, 4, 1]), [-1, 0, 1, 1, 1, 1, 2]),
    ],
)
def test_parents_of_small_shapes(tree, parents):
    assert tree.parents.tolist() == parents


@given(st.integers(2, 4), st.integers(0, 4))
def test_k_ary_trees_are_complete(branching, depth):
    tree = k_ary(branching, depth)
    assert tree.nodes == (branching ** (depth + 1) - 1) // (branching - 1)
    assert tree.level_widths.tolist() == [branching**level for level in range(depth + 1)]
    assert set(tree.child_counts.tolist()) <= {0, branching}
    assert tree == level_widths([branching**level for level in range(1, depth + 1)])


@given(st.lists(st.integers(1, 12), max_size=6))
def test_level_widths_are_even(widths):
    tree = level_widths(widths)
    assert tree.level_widths.tolist() == [1, *widths]
    for level in tree.levels[:-1]:
        counts = tree.child_counts[level].tolist()
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: chain(-1), "depth: expected at least 0. Got -1."),
        (lambda: chains(0, 2), "count: expected at least 1. Got 0."),
        (lambda: chains(2, -1), "depth: expected at least 0. Got -1."),
        (lambda: k_ary(0, 2), "branching: expected at least 1. Got 0."),
        (lambda: k_ary(2, -1), "depth: expected at least 0. Got -1."),
        (lambda: level_widths([0]), "width at depth 1: expected at least 1. Got 0."),
        (lambda: level_widths([2, -3]), "width at depth 2: expected at least 1. Got -3."),
    ],
)
def test_bad_arguments_are_named(make, reason):
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert str(caught.value) == reason
