"""A mask behind any length equals one that is built for this length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.runtime.models.mask import TreeMask
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
    assert letters(tree_mask(tree, length + room).behind(length)) == expected


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_a_mask_behind_any_length_equals_one_built_for_it(picks, data):
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
    assert torch.equal(mask.behind(length), expected)


def test_rows_may_be_fewer_than_columns():
    visible = torch.tensor([[True, False, True]])
    assert letters(TreeMask(visible, 4, dtype=torch.float32, device=CPU).behind(2)) == ["TTTFT"]


def test_no_mask_where_every_node_sees_everything():
    assert tree_mask(chain(0), 5).behind(3) is None
    assert TreeMask(torch.ones((1, 4), dtype=torch.bool), 5, dtype=torch.float32, device=CPU).behind(0) is None


def test_a_mask_is_a_view_of_one_buffer():
    mask = tree_mask(chain(3), 9, torch.bfloat16)
    assert mask.behind(9).dtype == torch.bfloat16
    assert mask.behind(4).untyped_storage().data_ptr() == mask.behind(9).untyped_storage().data_ptr()
