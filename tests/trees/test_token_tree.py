"""TokenTree against slow definitions that use only the parents."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.trees import TokenTree

T, F = True, False


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


every_tree = pytest.mark.parametrize("parents", [[-1], [-1, 0], [-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2], [-1, 0, 0, 0]])


class TestDerivedArrays:
    @given(level_orders())
    @example([-1])
    def test_depth_counts_the_steps_from_the_root(self, parents):
        assert TokenTree(parents).depth.tolist() == [len(path_to(parents, i)) - 1 for i in range(len(parents))]

    @given(level_orders())
    @example([-1])
    def test_rank_counts_the_siblings_before(self, parents):
        assert TokenTree(parents).rank.tolist() == [parents[:i].count(parents[i]) for i in range(len(parents))]

    @given(level_orders())
    @example([-1])
    def test_children_and_their_counts(self, parents):
        tree, nodes = TokenTree(parents), range(len(parents))
        expected = [children_of(parents, i) for i in nodes]
        assert [list(tree.children(i)) for i in nodes] == expected
        assert tree.child_counts.tolist() == [len(children) for children in expected]

    @given(level_orders())
    @example([-1])
    def test_first_child(self, parents):
        tree = TokenTree(parents)
        for node, first in enumerate(tree.first_child.tolist()):
            children = children_of(parents, node)
            assert first == (children[0] if children else sum(parent < node for parent in parents))

    @given(level_orders())
    @example([-1])
    def test_levels_hold_the_nodes_of_each_depth_in_order(self, parents):
        tree, depth = TokenTree(parents), [len(path_to(parents, i)) - 1 for i in range(len(parents))]
        expected = [[i for i in range(len(parents)) if depth[i] == d] for d in range(max(depth) + 1)]
        assert [list(range(len(parents)))[level] for level in tree.levels] == expected
        assert tree.level_widths.tolist() == [len(level) for level in expected]
        assert tree.max_depth == max(depth)
        assert tree.nodes == len(tree) == len(parents)

    @given(level_orders())
    @example([-1])
    def test_draft_widths_count_the_internal_nodes_of_each_depth(self, parents):
        depth = [len(path_to(parents, i)) - 1 for i in range(len(parents))]
        internal = [depth[i] for i in range(len(parents)) if children_of(parents, i)]
        assert TokenTree(parents).draft_widths.tolist() == [internal.count(d) for d in range(max(depth))]

    @given(level_orders())
    @example([-1])
    def test_ancestor_mask_marks_the_path_to_each_node(self, parents):
        nodes = range(len(parents))
        expected = [[column in path_to(parents, row) for column in nodes] for row in nodes]
        assert TokenTree(parents).ancestor_mask.tolist() == expected

    @given(level_orders())
    @example([-1])
    def test_leaf_paths_run_from_the_root_to_every_leaf(self, parents):
        paths = [path_to(parents, i) for i in range(len(parents)) if not children_of(parents, i)]
        longest = max(map(len, paths))
        expected = [path + [-1] * (longest - len(path)) for path in paths]
        assert TokenTree(parents).leaf_paths.tolist() == expected

    @every_tree
    def test_array_dtypes(self, parents):
        tree = TokenTree(parents)
        names = [
            "parents",
            "depth",
            "rank",
            "child_counts",
            "first_child",
            "level_widths",
            "draft_widths",
            "leaf_paths",
        ]
        assert {name: getattr(tree, name).dtype for name in names} == dict.fromkeys(names, np.dtype(np.int32))
        assert tree.ancestor_mask.dtype == np.bool_


class TestAncestorMaskByEye:
    """Row i: what node i may attend to. T on the diagonal, then T at its parent and upward."""

    def test_lopsided_6(self):
        assert TokenTree([-1, 0, 0, 1, 1, 4]).ancestor_mask.tolist() == [
            [T, F, F, F, F, F],
            [T, T, F, F, F, F],
            [T, F, T, F, F, F],
            [T, T, F, T, F, F],
            [T, T, F, F, T, F],
            [T, T, F, F, T, T],
        ]


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


class TestImmutability:
    @pytest.mark.parametrize("name", ["parents", "depth", "rank"])
    def test_arrays_cannot_be_written(self, name):
        with pytest.raises(ValueError, match="read-only"):
            getattr(TokenTree([-1, 0]), name)[0] = 5

    @pytest.mark.parametrize("name", ["parents", "depth", "rank"])
    def test_attributes_cannot_be_replaced(self, name):
        with pytest.raises(FrozenInstanceError):
            setattr(TokenTree([-1, 0]), name, np.zeros(2, np.int32))

    def test_parents_are_copied(self):
        given_array = np.array([-1, 0, 0], np.int32)
        tree = TokenTree(given_array)
        given_array[2] = 1
        assert tree.parents.tolist() == [-1, 0, 0]


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
