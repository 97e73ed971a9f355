"""Parameters of dynamic trees."""

import pytest

from treeopt.errors import InvalidValueError
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes


@pytest.mark.parametrize(("top_k", "depth"), [(k, d) for k in range(1, 5) for d in range(1, 5)])
def test_the_pool_is_what_the_levels_draft(top_k, depth):
    drafted, beams = 0, 1
    for _ in range(depth):
        drafted += beams * top_k
        beams = top_k
    assert pool_nodes(top_k, depth) == drafted
    DynamicTree(top_k=top_k, depth=depth, nodes=drafted + 1)
    with pytest.raises(InvalidValueError, match="nodes: expected"):
        DynamicTree(top_k=top_k, depth=depth, nodes=drafted + 2)


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"depth": 0}, {"nodes": 1}])
def test_numbers_too_small_are_refused(wrong):
    with pytest.raises(InvalidValueError, match=f"{next(iter(wrong))}: expected"):
        DynamicTree(**{"top_k": 2, "depth": 2, "nodes": 4, **wrong})


def test_a_chain_is_a_tree_of_one_child_each():
    assert DynamicTree.chain(5) == DynamicTree(top_k=1, depth=5, nodes=6)
    assert DynamicTree.chain(5).is_chain
    assert not DynamicTree(top_k=2, depth=5, nodes=6).is_chain
    assert not DynamicTree(top_k=1, depth=5, nodes=5).is_chain
    assert DynamicTree.chain(3).draft_widths == (1, 1, 1)
