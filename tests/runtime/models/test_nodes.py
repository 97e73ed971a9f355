"""A mask after any length equals one that is built for this length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.runtime.models.nodes import PassNodes, TreeMask
from treeopt.trees import TokenTree, chain, level_widths

CPU = torch.device("cpu")


def letters(mask):
    """Write a mask as T, may attend, and F, one word a row."""
    assert set(mask.unique().tolist()) <= {0.0, float("-inf")}
    return ["".join("T" if value == 0 else "F" for value in row) for row in mask.tolist()]


def tree_mask(tree, capacity, dtype=torch.float32):
    return TreeMask(torch.from_numpy(tree.ancestor_mask), capacity, dtype=dtype, device=CPU)


GOLDEN = [
    (chain(1), 0, ["TF", "TT"]),
    (chain(2), 1, ["TTFF", "TTTF", "TTTT"]),
    (level_widths([2]), 2, ["TTTFF", "TTTTF", "TTTFT"]),
    (level_widths([2, 3]), 0, ["TFFFFF", "TTFFFF", "TFTFFF", "TTFTFF", "TTFFTF", "TFTFFT"]),
    (
        TokenTree([-1, 0, 0, 0, 1, 1, 2]),
        3,
        [
            "TTTTFFFFFF",
            "TTTTTFFFFF",
            "TTTTFTFFFF",
            "TTTTFFTFFF",
            "TTTTTFFTFF",
            "TTTTTFFFTF",
            "TTTTFTFFFT",
        ],
    ),
]


@pytest.mark.parametrize(("tree", "length", "expected"), GOLDEN)
@pytest.mark.parametrize("room", [0, 5])
def test_golden_masks(tree, length, expected, room):
    assert letters(tree_mask(tree, length + room).after(length)) == expected


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_a_mask_after_any_length_equals_one_built_for_it(picks, data):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    mask = tree_mask(tree, capacity=8)
    length = data.draw(st.integers(0, 8))
    expected = torch.full((tree.nodes, length + tree.nodes), float("-inf"))
    expected[:, :length] = 0
    for node in range(tree.nodes):
        above = node
        while above >= 0:
            expected[node, length + above] = 0
            above = int(tree.parents[above])
    assert torch.equal(mask.after(length), expected)


def test_rows_may_be_fewer_than_columns():
    visible = torch.tensor([[True, False, True]])
    assert letters(TreeMask(visible, 4, dtype=torch.float32, device=CPU).after(2)) == ["TTTFT"]


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 600), min_size=1, max_size=6))
def test_the_mask_of_nodes_serves_any_length(picks, lengths):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    nodes = PassNodes.whole(tree)
    for length in lengths:
        mask = nodes.mask_after(length, dtype=torch.float32, device=CPU)
        if tree.nodes == 1:
            assert mask is None
        else:
            assert torch.equal(mask, tree_mask(tree, length).after(length))


def test_no_mask_where_every_node_sees_everything():
    for nodes in (
        PassNodes.chain(1),
        PassNodes(depth=[3], visible=torch.ones((1, 4), dtype=torch.bool).numpy(), start=3),
    ):
        assert nodes.sees_all
        assert nodes.mask_after(3, dtype=torch.float32, device=CPU) is None


def test_parents_are_feed_indices():
    tree = TokenTree([-1, 0, 0, 1, 1, 2, 4])
    for first, end in ((0, 7), (1, 7), (3, 6)):
        nodes = PassNodes(depth=tree.depth[first:end], visible=tree.ancestor_mask[first:end, :end], start=first)
        assert nodes.parents.tolist() == [max(0, parent) for parent in tree.parents[first:end]]
    assert PassNodes.chain(4).parents.tolist() == [0, 0, 1, 2]


def test_a_chain_sees_all_before_it():
    assert letters(PassNodes.chain(3).mask_after(2, dtype=torch.float32, device=CPU)) == ["TTTFF", "TTTTF", "TTTTT"]


def test_a_mask_is_a_view_of_one_buffer():
    mask = tree_mask(chain(3), 9, torch.bfloat16)
    assert mask.after(9).dtype == torch.bfloat16
    assert mask.after(4).untyped_storage().data_ptr() == mask.after(9).untyped_storage().data_ptr()
