"""The picture: where nodes stand, and which files come out."""

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.trees import TokenTree, chain, chains, k_ary
from treeopt.trees.figure import save_figure
from treeopt.trees.layout import layout
from treeopt.trees.token_tree import FloatArray


def random_tree(nodes: int, seed: int) -> TokenTree:
    generator = np.random.default_rng(seed)
    return TokenTree.ordered([-1, *(int(generator.integers(max(0, i - 40), i)) for i in range(1, nodes))])


def falling_reach(tree: TokenTree) -> FloatArray:
    reach = np.ones(tree.nodes)
    for node in range(1, tree.nodes):
        reach[node] = 0.7 / (1 + 4 * tree.rank[node]) * reach[tree.parents[node]]
    return reach


TREES = [TokenTree([-1]), chain(8), chains(3, 4), k_ary(4, 4), *(random_tree(n, n) for n in (8, 64, 512))]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_nodes_of_a_level_stand_in_order_and_apart(tree: TokenTree) -> None:
    x, y = layout(tree)
    assert x.min() == 0
    np.testing.assert_array_equal(y, tree.depth)
    for level in tree.levels:
        assert np.all(np.diff(x[level]) >= 1 - 1e-9)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_branches_do_not_cross(tree: TokenTree) -> None:
    x, _ = layout(tree)
    for level in tree.levels[1:]:
        assert np.all(np.diff(x[level]) > 0)
        assert np.all(np.diff(x[tree.parents[level]]) >= 0)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_parents_stand_above_the_middle_of_their_children(tree: TokenTree) -> None:
    x, _ = layout(tree)
    for node in np.flatnonzero(tree.child_counts).tolist():
        children = tree.children(node)
        assert x[node] == pytest.approx((x[children[0]] + x[children[-1]]) / 2)


def test_subtrees_stand_below_each_other_where_they_fit() -> None:
    x, _ = layout(TokenTree([-1, 0, 0, 1, 1, 1]))
    assert x.tolist() == [1.5, 1.0, 2.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG\r\n"), (".PDF", b"%PDF-")])
@pytest.mark.parametrize("with_reach", [True, False])
def test_the_suffix_chooses_the_format_and_bytes_repeat(
    tmp_path: Path, suffix: str, start: bytes, with_reach: bool
) -> None:
    tree = random_tree(64, 0)
    reach = falling_reach(tree) if with_reach else None
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    save_figure(tree, first, reach=reach, title="64 nodes for $5")
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red"}):
        save_figure(tree, second, reach=reach, title="64 nodes for $5")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_every_tree_can_be_drawn(tmp_path: Path, tree: TokenTree) -> None:
    save_figure(tree, tmp_path / "tree.svg", reach=falling_reach(tree))
    svg = (tmp_path / "tree.svg").read_text()
    assert svg.count("<!-- 100\u2009% -->") == (2 if tree.nodes <= 64 else 1)
    assert "probability of being reached" in svg


def test_nodes_never_reached_are_drawn_too(tmp_path: Path) -> None:
    save_figure(chain(2), tmp_path / "tree.svg", reach=np.array([1.0, 0.0, 0.0]))
    assert (tmp_path / "tree.svg").read_text().count("<!-- 0\u2009% -->") == 2


@pytest.mark.parametrize("name", ["tree.jpg", "tree", "-"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"\.svg, \.png, \.pdf"):
        save_figure(chain(1), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TreeoptError, match="its folder does not exist"):
        save_figure(chain(1), tmp_path / "missing" / "tree.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(TreeoptError, match="is a folder"):
        save_figure(chain(1), tmp_path / "folder.svg")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder.svg"]


def test_reach_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="expected 3 numbers, one per node"):
        save_figure(chain(2), tmp_path / "tree.svg", reach=np.ones(2))


def test_matplotlib_comes_with_the_first_drawing_and_pyplot_never(tmp_path: Path) -> None:
    program = (
        "import sys, treeopt.trees.figure as figure, treeopt.trees as trees\n"
        "assert 'matplotlib' not in sys.modules\n"
        "figure.save_figure(trees.chain(2), sys.argv[1], reach=[1, 0.5, 0.2])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "tree.svg")], check=True)
