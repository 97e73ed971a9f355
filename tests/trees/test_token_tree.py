"""TokenTree against slow definitions that use only the parents."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.trees import TokenTree


@st.composite
def level_orders(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    """Parents in level order."""
    parents = [-1]
    for node in range(1, draw(st.integers(1, max_nodes))):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
    return parents


@st.composite
def any_orders(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    """Parents that stand before their children in any order: what TokenTree.ordered takes."""
    nodes = draw(st.integers(1, max_nodes))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]


def path_to(parents: list[int], node: int) -> list[int]:
    """Return the nodes from the root to a node, both included."""
    return [*path_to(parents, parents[node]), node] if node else [0]


def children_of(parents: list[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def nested(parents: list[int], node: int = 0) -> list[list]:
    """Return the shape below a node, free of any numbering: one list per child in rank order."""
    return [nested(parents, child) for child in children_of(parents, node)]


@given(level_orders())
@example([-1])
def test_derived_arrays_equal_slow_definitions(parents):
    tree, nodes = TokenTree(parents), range(len(parents))
    paths, children = [path_to(parents, i) for i in nodes], [children_of(parents, i) for i in nodes]
    depth = [len(path) - 1 for path in paths]
    levels = [[i for i in nodes if depth[i] == d] for d in range(max(depth) + 1)]
    to_leaves = [path for path, below in zip(paths, children, strict=True) if not below]
    assert tree.depth.tolist() == depth
    assert tree.rank.tolist() == [parents[:i].count(parents[i]) for i in nodes]
    assert [list(tree.children(i)) for i in nodes] == children
    assert tree.child_counts.tolist() == [len(below) for below in children]
    for node, first in enumerate(tree.first_child.tolist()):
        assert first == (children[node][0] if children[node] else sum(parent < node for parent in parents))
    assert [list(nodes)[level] for level in tree.levels] == levels
    assert tree.level_widths.tolist() == [len(level) for level in levels]
    assert tree.max_depth == max(depth)
    assert tree.nodes == len(tree) == len(parents)
    assert tree.draft_widths.tolist() == [sum(bool(children[i]) for i in level) for level in levels[:-1]]
    assert tree.ancestor_mask.tolist() == [[column in path for column in nodes] for path in paths]
    assert tree.leaf_paths.tolist() == [path + [-1] * (max(depth) + 1 - len(path)) for path in to_leaves]
    names = ["parents", "depth", "rank", "child_counts", "first_child", "level_widths", "draft_widths", "leaf_paths"]
    assert {getattr(tree, name).dtype for name in names} == {np.dtype(np.int32)}
    assert tree.ancestor_mask.dtype == np.bool_


class TestRejections:
    @pytest.mark.parametrize(
        ("parents", "reason"),
        [
            pytest.param([-1, 0.0], r"parents: expected one integer per node.*float64", id="floats"),
            pytest.param([-1, 2**70], r"parents: expected one integer per node.*object", id="beyond 64 bits"),
            pytest.param([], r"parents: expected one integer per node.*\(0,\)", id="empty"),
            pytest.param([[-1, 0]], r"parents: expected one integer per node.*\(1, 2\)", id="2-D"),
            pytest.param([-1, [0]], r"parents: expected one integer per node.*lists inside", id="ragged"),
            pytest.param([-1, 7], r"parents: expected node indices from -1 to 1. Got -1 to 7", id="beyond the nodes"),
            pytest.param([-1, 0, -2], r"parents: expected node indices from -1 to 2. Got -2 to 0", id="below -1"),
            pytest.param([0, 0], r"parents\[0\]: expected -1, the root. Got 0", id="no root"),
            pytest.param([-1, 0, -1], r"parents\[2\]: .*Got -1, a second root", id="two roots"),
            pytest.param([-1, 2, 1], r"parents\[1\]: expected a node before 1. Got 2", id="parent after its child"),
            pytest.param([-1, 0, 1, 0], r"parents\[3\]: .*at least 1. Got 0; TokenTree.ordered\(\)", id="falling"),
        ],
    )
    def test_what_is_no_tree(self, parents, reason):
        with pytest.raises(InvalidValueError, match=reason):
            TokenTree(parents)

    @pytest.mark.parametrize("parents", [[], [0], [-1, -1], [-1, 1], [-1, 2, 0], [-1, 0.5], [-1, 0, -1]])
    def test_ordered_rejects_invalid_parents(self, parents):
        with pytest.raises(InvalidValueError, match=r"^parents"):
            TokenTree.ordered(parents)

    @settings(deadline=None)
    @given(st.lists(st.integers(-2, 6), max_size=6))
    def test_any_integers_give_a_tree_in_level_order_or_a_known_error(self, parents):
        good = (
            parents[:1] == [-1]
            and all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1))
            and parents == sorted(parents)
        )
        try:
            assert TokenTree(parents).parents.tolist() == parents
        except TreeoptError:
            assert not good
        else:
            assert good


class TestEquality:
    @settings(deadline=None)
    @given(level_orders(6), level_orders(6))
    def test_trees_are_equal_when_their_parents_are(self, one, other):
        assert (TokenTree(one) == TokenTree(other)) == (one == other)

    @pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
    def test_any_integer_dtype_is_accepted(self, dtype):
        tree, other = TokenTree([-1, 0, 0]), TokenTree(np.array([-1, 0, 0], dtype))
        assert tree == other
        assert hash(tree) == hash(other)
        assert {tree: "found"}[other] == "found"

    def test_repr_has_the_size(self):
        assert repr(TokenTree([-1, 0, 0, 1])) == "TokenTree(nodes=4, max_depth=2, widths=[1, 2, 1])"


class TestOrdered:
    @settings(deadline=None)
    @given(any_orders())
    @example([-1])
    @example([-1, 0, 1, 0])
    def test_shape_and_ranks_stay(self, parents):
        assert nested(TokenTree.ordered(parents).parents.tolist()) == nested(parents)

    @settings(deadline=None)
    @given(level_orders(), st.randoms(use_true_random=False))
    def test_shuffled_nodes_come_back(self, parents, random):
        """Nodes renumbered in a random order, parents before children and siblings in rank order."""
        number, ready, shuffled = {}, [0], []
        while ready:
            node = ready.pop(random.randrange(len(ready)))
            number[node] = len(shuffled)
            shuffled.append(number[parents[node]] if node else -1)
            siblings = [] if node == 0 else children_of(parents, parents[node])
            ready.extend(siblings[siblings.index(node) + 1 :][:1] if siblings else [])
            ready.extend(children_of(parents, node)[:1])
        assert TokenTree.ordered(shuffled).parents.tolist() == parents
