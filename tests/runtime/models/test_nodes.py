"""Attention masks of tree nodes after any number of committed tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree, chain, level_widths

CPU = torch.device("cpu")


def mask_after(nodes, length, dtype=torch.float32):
    return nodes.mask_after(length, dtype=dtype, device=CPU)


def format_mask(mask):
    """Return a string per row: T for a slot that the row attends to, F for a hidden one."""
    assert set(mask.unique().tolist()) <= {0.0, float("-inf")}
    return ["".join("T" if value == 0 else "F" for value in row) for row in mask.tolist()]


@pytest.mark.parametrize(
    ("tree", "length", "expected"),
    [
        (chain(1), 0, ["TF", "TT"]),
        (level_widths([2]), 2, ["TTTFF", "TTTTF", "TTTFT"]),
        (level_widths([2, 3]), 0, ["TFFFFF", "TTFFFF", "TFTFFF", "TTFTFF", "TTFFTF", "TFTFFT"]),
        (
            TokenTree([-1, 0, 0, 0, 1, 1, 2]),
            1,
            ["TTFFFFFF", "TTTFFFFF", "TTFTFFFF", "TTFFTFFF", "TTTFFTFF", "TTTFFFTF", "TTFTFFFT"],
        ),
    ],
)
def test_masks_of_trees(tree, length, expected):
    assert format_mask(mask_after(PassNodes.whole(tree), length)) == expected


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_one_object_gives_the_masks_of_any_lengths(picks, lengths):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    nodes = PassNodes.whole(tree)
    for length in lengths:
        expected = torch.full((tree.nodes, length + tree.nodes), float("-inf"))
        expected[:, :length] = 0
        for node in range(tree.nodes):
            above = node
            while above >= 0:
                expected[node, length + above] = 0
                above = int(tree.parents[above])
        mask = mask_after(nodes, length)
        assert mask is None if tree.nodes == 1 else torch.equal(mask, expected)


def test_rows_may_be_fewer_than_columns():
    nodes = PassNodes(depth=[2], visible=torch.tensor([[True, False, True]]).numpy(), start=2)
    assert format_mask(mask_after(nodes, 2)) == ["TTTFT"]


def test_chain_attends_to_all_before_it():
    assert format_mask(mask_after(PassNodes.chain(3), 2)) == ["TTTFF", "TTTTF", "TTTTT"]


def test_no_mask_if_nothing_is_hidden():
    last = PassNodes(depth=[3], visible=torch.ones((1, 4), dtype=torch.bool).numpy(), start=3)
    for nodes in (PassNodes.chain(1), last):
        assert nodes.sees_all
        assert mask_after(nodes, 3) is None


def test_masks_are_views_of_one_buffer():
    nodes = PassNodes.whole(chain(3))
    masks = [mask_after(nodes, length, torch.bfloat16) for length in (9, 4)]
    assert masks[0].dtype == torch.bfloat16
    assert len({mask.untyped_storage().data_ptr() for mask in masks}) == 1


def test_parents_are_feed_indices():
    tree = TokenTree([-1, 0, 0, 1, 1, 2, 4])
    for first, end in ((0, 7), (1, 7), (3, 6)):
        nodes = PassNodes(depth=tree.depth[first:end], visible=tree.ancestor_mask[first:end, :end], start=first)
        assert nodes.parents.tolist() == [max(0, parent) for parent in tree.parents[first:end]]
    assert PassNodes.chain(4).parents.tolist() == [0, 0, 1, 2]
