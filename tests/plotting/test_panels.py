"""Panels: legends and headings fit and cover nothing."""

import pytest
from matplotlib.axes import Axes

from tests.support.figures import box, common, seen
from treeopt.plotting.panels import WIDTH, Panel, compose, legend_patch
from treeopt.plotting.style import POINTS, SERIES

LONG = "a label of many words that no legend has room for in one line of a figure"


def panel(labels: list[str], title: str = "Title", height: float = 150.0) -> Panel:
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=SERIES[0])
        for label in labels:
            legend_patch(axes, SERIES[1], label)

    return Panel(draw=draw, title=title, x="tokens", y="ms", height=height, note="a note")


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("title", ["", "words " * 60])
def test_nothing_is_cut_or_covered(title: str, columns: int) -> None:
    panels = [panel(["one", "two", "three", LONG, 3 * LONG], height=height) for height in (40.0, 150.0, 300.0)]
    found = seen(compose(panels, title=title, subtitle=title and LONG, columns=columns))
    assert found.cut_off() == []
    assert found.overlapping() == []
    for axes in found.figure.axes:
        below = [text for text in found.texts if text.get_text() in ("one", "a note") and text.axes is axes]
        assert not [text for text in below for other in found.figure.axes if common(box(text), other.bbox)]
    words = found.words
    assert [words.count(each) for each in ("one", "two", "three")] == [3, 3, 3]
    assert len([each for each in words if each.startswith("a label of") and each.endswith("…")]) == 6
    assert ("Title" in words) == bool(title)


def test_columns_make_a_figure_wider_and_lower() -> None:
    panels = [panel(["one"])] * 4
    one, two = (compose(panels, columns=columns) for columns in (1, 2))
    assert [POINTS * each.get_size_inches()[0] for each in (one, two)] == [WIDTH, 2 * WIDTH]
    assert one.get_size_inches()[1] == pytest.approx(2 * two.get_size_inches()[1])


def test_axes_height_is_independent_of_other_panels() -> None:
    for title in ("", "words " * 60):
        axes = compose([panel(["one"], height=123.0)], title=title).axes[0]
        assert axes.bbox.height * POINTS / axes.figure.dpi == pytest.approx(123.0)
