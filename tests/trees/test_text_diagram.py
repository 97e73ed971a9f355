"""Text diagrams: appearance, and every node drawn or counted within the bounds."""

import heapq
import re

import numpy as np
import pytest

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.trees import TokenTree, chain, k_ary
from treeopt.trees.layout import format_percent
from treeopt.trees.text_diagram import MIN_ROWS, MIN_WIDTH, WIDTH, draw_text

ACCEPTANCE = (0.73, 0.12, 0.05, 0.03, 0.02, 0.01, 0.008, 0.006)


def most_reached(nodes: int, row: tuple[float, ...] = ACCEPTANCE) -> tuple[TokenTree, Float64]:
    """Return the tree of the nodes reached most often, children of rank k being accepted with probability row[k]."""
    paths: list[tuple[float, tuple[int, ...]]] = []
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while len(paths) < nodes:
        reach, path = heapq.heappop(waiting)
        paths.append((-reach, path))
        heapq.heappush(waiting, (reach * row[0], (*path, 0)))
        if path and path[-1] + 1 < len(row):
            heapq.heappush(waiting, (reach / row[path[-1]] * row[path[-1] + 1], (*path[:-1], path[-1] + 1)))
    paths.sort(key=lambda item: (len(item[1]), item[1]))
    index = {path: i for i, (_, path) in enumerate(paths)}
    return TokenTree([index[path[:-1]] if path else -1 for _, path in paths]), np.array([reach for reach, _ in paths])


def count_nodes(drawing: str) -> tuple[int, int]:
    """Return the nodes drawn and those left out."""
    lines = drawing.split("\n\n")[2]
    return len(re.findall(r"●|(?<![+\d.])[\d.]+", lines)), sum(int(n) for n in re.findall(r"\+(\d+)", lines))


def test_diagram_of_five_nodes() -> None:
    tree, reach = TokenTree([-1, 0, 0, 1, 2]), np.array([1, 0.73, 0.12, 0.533, 0.0004])
    assert draw_text(tree, reach=reach) == (
        "5 nodes, depth 2, 2.38 expected tokens per step\n"
        "\n"
        "depth   0       1       2\n"
        "nodes   1       2       2\n"
        "        ▄▄▄     ███     ███\n"
        "\n"
        "reach % 100 ─┬─ 73 ──── 53\n"
        "             └─ 12 ──── <.1"
    )


def test_the_title_has_the_predicted_tokens_if_they_are_given() -> None:
    tree, reach = TokenTree([-1, 0, 1]), np.array([1, 0.5, 0.25])
    assert draw_text(tree, reach=reach).startswith("3 nodes, depth 2, 1.75 expected tokens per step")
    drawing = draw_text(tree, reach=reach, tokens_per_step=1.6)
    assert drawing.startswith("3 nodes, depth 2, 1.60 expected tokens per step")


def test_without_reach_nodes_are_dots() -> None:
    assert draw_text(TokenTree([-1, 0, 0, 1])).splitlines()[-2:] == [
        "tree    ● ───┬─ ● ───── ●",
        "             └─ ●",
    ]


def test_omitted_nodes_are_counted() -> None:
    tree, reach = TokenTree([-1, 0, 0, 0, 0, 0, 1, 2]), np.array([1, 0.5, 0.2, 0.1, 0.08, 0.05, 0.4, 0.15])
    assert draw_text(tree, reach=reach, max_rows=10).splitlines()[6:] == [
        "reach % 100 ─┬─ 50 ──── 40 +3",
        "             └─ 20 ──── 15",
        "",
        "+n: n more nodes branch off there; left out: 3 of 8 nodes, 0.23 of 2.48 expected tokens",
    ]


@pytest.mark.parametrize("max_rows", [MIN_ROWS, 64, 300])
@pytest.mark.parametrize("nodes", [1, 8, 512])
@pytest.mark.parametrize("row", [ACCEPTANCE, (0.9, 0.05), (0.2,) * 5])
def test_every_node_is_drawn_or_counted_within_the_bounds(nodes: int, row: tuple[float, ...], max_rows: int) -> None:
    tree, reach = most_reached(nodes, row)
    for drawing in (draw_text(tree, reach=reach, max_rows=max_rows), draw_text(tree, max_rows=max_rows)):
        lines = drawing.splitlines()
        assert len(lines) <= max_rows
        assert max(map(len, lines)) <= WIDTH
        assert sum(count_nodes(drawing)) == nodes
        assert sum(map(int, lines[3].split()[1:])) == nodes


def test_every_node_is_drawn_or_counted_at_every_width() -> None:
    trees = [
        most_reached(512),
        most_reached(40, (0.9, 0.05)),
        (chain(60), 0.9 ** np.arange(61)),
        (k_ary(3000, 1), None),
        (k_ary(4, 4), None),
    ]
    for tree, reach in trees:
        for width in (MIN_WIDTH, 40, 80, 92, 250):
            drawing = draw_text(tree, reach=reach, max_rows=20, width=width)
            lines = drawing.splitlines()
            assert len(lines) <= 20
            assert max(map(len, lines)) <= width
            assert sum(count_nodes(drawing)) == tree.nodes
            assert sum(map(int, lines[3].split()[1:])) == tree.nodes
            assert lines[0].startswith(f"{tree.nodes} nodes")


def test_wider_lines_show_more_nodes() -> None:
    tree, reach = most_reached(512)
    drawn_nodes = [count_nodes(draw_text(tree, reach=reach, width=width))[0] for width in (MIN_WIDTH, 40, 80, 160)]
    assert drawn_nodes == sorted(drawn_nodes)
    assert drawn_nodes[0] < drawn_nodes[-1]
    assert draw_text(tree, reach=reach, width=100) == draw_text(tree, reach=reach)


def test_narrow_lines_are_shortened_or_cut() -> None:
    tree, reach = most_reached(512)
    reason = {width: draw_text(tree, reach=reach, width=width).splitlines() for width in (100, 80, 40, MIN_WIDTH)}
    assert [lines[0] for lines in reason.values()] == [
        "512 nodes, depth 20, 7.14 expected tokens per step",
        "512 nodes, depth 20, 7.14 expected tokens per step",
        "512 nodes, depth 20, 7.14 tokens/step",
        "512 nodes, depth 20",
    ]
    assert re.fullmatch(r"\+n: n more nodes branch off there; left out: \d+ of 512 nodes, .* tokens", reason[100][-1])
    assert re.fullmatch(r"\+n: n more nodes; left out: \d+ of 512 nodes, [\d.]+ of 7.14 tokens", reason[80][-1])
    assert re.fullmatch(r"\+n: \d+ of 512 nodes left out", reason[40][-1])
    assert re.fullmatch(r"\+n: \d+ of 512 nodes le…", reason[MIN_WIDTH][-1])


def test_the_most_reached_nodes_are_drawn() -> None:
    tree, reach = most_reached(512)
    drawing = draw_text(tree, reach=reach)
    drawn, left_out = count_nodes(drawing)
    assert 100 < drawn < 512
    assert f"{np.sort(reach)[:left_out].sum():.2f} of {reach.sum():.2f} expected tokens" in drawing


def test_levels_too_deep_to_draw_share_a_column() -> None:
    depths, widths, *_ = draw_text(chain(60)).split("\n\n")[1].splitlines()
    assert depths.split()[-2:] == ["20", "21-60"]
    assert widths.split()[-2:] == ["1", "40"]


@pytest.mark.parametrize(
    ("probability", "text"),
    [(1, "100"), (0.9949, "99"), (0.0996, "10"), (0.0994, "9.9"), (0.0005, "0.1"), (0.0004, "<.1"), (0, "0")],
)
def test_percentages_take_three_characters(probability: float, text: str) -> None:
    assert format_percent(probability) == text


def test_too_few_rows_and_wrong_reach_are_errors() -> None:
    with pytest.raises(InvalidValueError, match=r"max_rows: expected at least 9\. Got 8\."):
        draw_text(chain(2), max_rows=8)
    with pytest.raises(InvalidValueError, match=r"width: expected at least 24\. Got 23"):
        draw_text(chain(2), width=23)
    with pytest.raises(InvalidValueError, match="expected 3 numbers, one per node"):
        draw_text(chain(2), reach=np.ones(2))
