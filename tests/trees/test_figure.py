"""Tree figures: layout, contents and files."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.dom import minidom

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.transforms import Bbox

from tests.support.figures import DrawnFigure, box, common, drawn
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.trees import Provenance, TokenTree, TreeFile, chain, chains, headline, k_ary
from treeopt.trees.figure import MOST_OUTLINED, tree_figure
from treeopt.trees.figure_file import save_figure
from treeopt.trees.figure_layout import lay_out_figure
from treeopt.trees.layout import node_positions


def random_tree(nodes: int, seed: int) -> TokenTree:
    generator = np.random.default_rng(seed)
    return TokenTree.ordered([-1, *(int(generator.integers(max(0, i - 40), i)) for i in range(1, nodes))])


def falling_reach(tree: TokenTree) -> Float64:
    reach = np.ones(tree.nodes)
    for node in range(1, tree.nodes):
        reach[node] = 0.7 / (1 + 4 * tree.rank[node]) * reach[tree.parents[node]]
    return reach


TREES = [TokenTree([-1]), chain(8), chains(3, 4), k_ary(4, 4), *(random_tree(n, n) for n in (8, 64, 512))]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_nodes_of_a_level_are_ordered_and_apart(tree: TokenTree) -> None:
    """Neighbours are apart and in the order of their parents, so that no branches cross."""
    x = node_positions(tree.parents)
    assert x.min() == 0
    for level in tree.levels:
        assert np.all(np.diff(x[level]) >= 1 - 1e-9)
    for level in tree.levels[1:]:
        assert np.all(np.diff(x[tree.parents[level]]) >= 0)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_parents_stand_above_the_middle_of_their_children(tree: TokenTree) -> None:
    x = node_positions(tree.parents)
    for node in np.flatnonzero(tree.child_counts).tolist():
        children = tree.children(node)
        assert x[node] == pytest.approx((x[children[0]] + x[children[-1]]) / 2)


def test_subtrees_are_packed() -> None:
    x = node_positions(TokenTree([-1, 0, 0, 1, 1, 1]).parents)
    assert x.tolist() == [1.5, 1.0, 2.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_nodes_do_not_touch(tree: TokenTree) -> None:
    figure = lay_out_figure(tree, np.ones(tree.nodes), "", "")
    across = figure.y if figure.sideways else figure.x
    for level in tree.levels:
        assert np.all(np.diff(across[level]) > figure.radius[level][1:] + figure.radius[level][:-1])


@pytest.mark.parametrize(
    ("suffix", "start", "with_reach"),
    [(".svg", b"<?xml", False), (".png", b"\x89PNG\r\n", True), (".PDF", b"%PDF-", True)],
)
def test_the_suffix_chooses_the_format_and_bytes_repeat(
    tmp_path: Path, suffix: str, start: bytes, with_reach: bool
) -> None:
    tree = random_tree(24, 0)
    reach = falling_reach(tree) if with_reach else None
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    save_figure(tree, first, reach=reach, title="24 nodes for $5")
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red"}):
        save_figure(tree, second, reach=reach, title="24 nodes for $5")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_every_tree_can_be_drawn(tmp_path: Path, tree: TokenTree) -> None:
    save_figure(tree, tmp_path / "tree.svg", reach=falling_reach(tree))
    svg = (tmp_path / "tree.svg").read_text()
    assert svg.count(">100\u2009%</text>") == (2 if tree.nodes <= 64 else 1)
    assert "probability of being reached" in svg


LONG = "a-target-with-a-long-name-instruct-v0.3 + a-draft-with-a-long-name on NVIDIA H100 80GB HBM3 (2 threads)"


def picture(tree: TokenTree, path: Path) -> DrawnFigure:
    """Return a tree's picture below a title and a subtitle that are longer than it is wide."""
    return drawn(lambda at: save_figure(tree, at, reach=falling_reach(tree), title=LONG, subtitle=2 * LONG), path)


def node_boxes(drawing: DrawnFigure) -> list[Bbox]:
    """Return the bounding boxes of the nodes, in pixels."""
    axes = drawing.figure.axes[0]
    boxes = []
    for nodes in (collection for collection in axes.collections if collection.get_zorder() == 3):
        (size,) = nodes.get_sizes()
        radius = np.sqrt(size) / 2 * drawing.figure.dpi / 72
        boxes += [Bbox([centre - radius, centre + radius]) for centre in axes.transData.transform(nodes.get_offsets())]
    return boxes


@pytest.mark.parametrize("tree", [*TREES[:3], chain(24), random_tree(20, 3)], ids=repr)
def test_labels_do_not_overlap(tmp_path: Path, tree: TokenTree) -> None:
    drawing = picture(tree, tmp_path / "tree.png")

    assert "".join(LONG.split()) in "".join("".join(drawing.words).split())
    assert drawing.cut_off() == []
    assert drawing.overlapping() == []
    nodes = node_boxes(drawing)
    assert len(nodes) == tree.nodes
    assert [text.get_text() for text in drawing.texts for node in nodes if common(box(text), node)] == []


@pytest.mark.parametrize("tree", [chain(2), chain(8), chain(24), chains(2, 12), random_tree(12, 4)], ids=repr)
def test_deep_trees_fill_the_figure(tmp_path: Path, tree: TokenTree) -> None:
    assert tree.max_depth >= tree.level_widths.max()
    drawing = picture(tree, tmp_path / "tree.png")

    nodes = Bbox.union(node_boxes(drawing))
    assert nodes.width > 0.6 * drawing.figure.bbox.width
    assert nodes.height < 0.6 * nodes.width


def test_large_trees_are_rasterized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = random_tree(128, 1)
    save_figure(tree, tmp_path / "outlines.svg", reach=falling_reach(tree), title="128 nodes")
    monkeypatch.setattr("treeopt.trees.figure.MOST_OUTLINED", 127)
    save_figure(tree, tmp_path / "pixels.svg", reach=falling_reach(tree), title="128 nodes")
    save_figure(tree, tmp_path / "again.svg", reach=falling_reach(tree), title="128 nodes")

    outlines, pixels = ((tmp_path / name).read_text() for name in ("outlines.svg", "pixels.svg"))
    assert outlines.count("<use") == tree.nodes
    assert outlines.count("C") > tree.nodes
    assert "<use" not in pixels
    assert "<image" in pixels
    assert ">128 nodes</text>" in pixels  # text stays text
    assert pixels == (tmp_path / "again.svg").read_text()
    assert MOST_OUTLINED * len(outlines) / 128 < 5e6


def test_headline_has_prediction_and_conditions() -> None:
    known = Provenance(pair="big + small", machine="CPU", threads=1, rule="typical", lossy=True, temperature=0.0)
    tree, reach = chain(2), np.array([1, 0.5, 0.25])

    assert headline(TreeFile(tree=tree)) == ("3 nodes, depth 2", "")
    assert headline(TreeFile(tree=tree, reach=reach)) == ("3 nodes, depth 2: predicted 1.75 tokens per step", "")
    assert headline(TreeFile(tree=tree, reach=reach, provenance=known))[1] == (
        "big + small on CPU (1 thread), typical (lossy) at temperature 0"
    )
    predicted = replace(known, tokens_per_step=1.7, speedup=1.2, machine=None, rule=None)
    assert headline(TreeFile(tree=tree, reach=reach, provenance=predicted)) == (
        "3 nodes, depth 2: predicted 1.70 tokens per step, 1.20 times plain decoding",
        "big + small, at temperature 0",
    )


def test_nodes_reached_more_often_are_larger_and_darker() -> None:
    reach = np.array([1.0, 0.5, 0.25, 0.01])
    axes = tree_figure(TokenTree([-1, 0, 0, 0]), reach).axes[0]
    nodes = [collection for collection in axes.collections if collection.get_zorder() == 3]
    size = {round(float(collection.get_offsets()[0, 0])): float(collection.get_sizes()[0]) for collection in nodes}
    shade = {
        round(float(collection.get_offsets()[0, 0])): float(collection.get_facecolor()[0, :3].sum())
        for collection in nodes
    }
    assert len(nodes) == 4
    order = sorted(size, key=lambda x: -size[x])
    assert [shade[x] for x in order] == sorted(shade.values())


def test_control_characters_leave_the_file_readable(tmp_path: Path) -> None:
    save_figure(chain(2), tmp_path / "tree.svg", title="a\x1b[31m\x07 -- <b>", subtitle="\ud800 \u6a21\n&")

    assert minidom.parse(str(tmp_path / "tree.svg")).documentElement.tagName == "svg"
    assert "\x1b" not in (tmp_path / "tree.svg").read_text("utf-8")


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


@pytest.mark.slow
def test_matplotlib_is_imported_lazily(tmp_path: Path) -> None:
    program = (
        "import sys, treeopt.trees as trees\n"
        "assert 'matplotlib' not in sys.modules\n"
        "trees.save_figure(trees.chain(2), sys.argv[1], reach=[1, 0.5, 0.2])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "tree.svg")], check=True)
