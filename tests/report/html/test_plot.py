"""Axes of the page's figures: places, ticks, and legends that fit."""

import math

import pytest

from treeopt.report.html.plot import Plot, Scale, around
from treeopt.report.html.shapes import dots, path
from treeopt.report.html.tables import MOST_BYTES, table_file


@pytest.mark.parametrize("base", [0, 2, 10])
@pytest.mark.parametrize("ends", [(1.0, 512.0), (0.3, 0.9), (1e-6, 1e6), (3.0, 3.0), (512.0, 1.0), (0.99, 1.01)])
def test_ticks_lie_within_and_are_few(ends: tuple[float, float], base: int) -> None:
    if base and ends[0] > ends[1]:
        return
    scale = Scale(low=ends[0], high=ends[1], start=10, end=110, base=base)
    ticks = scale.ticks()
    low, high = sorted(ends)
    slack = 1e-8 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(ticks) <= (64 if base == 2 else 16)
    assert ticks == sorted(set(ticks))
    assert all(9.9 <= scale(tick) <= 110.1 for tick in ticks)


def test_places_follow_the_scale() -> None:
    straight = Scale(low=0, high=4, start=0, end=100)
    doubling = Scale(low=1, high=16, start=0, end=100, base=2)
    assert [straight(each) for each in (0, 1, 4)] == [0, 25, 100]
    assert [doubling(each) for each in (1, 2, 16)] == pytest.approx([0, 25, 100])
    assert around([1.0, 2.0], room=2) == (0.5, 4.0)


def test_a_plot_draws_upwards() -> None:
    plot = Plot((0, 1), (0, 1), ("x", "y"))
    assert plot.y(1) < plot.y(0)
    plot.dot(0.5, 0.5, "tree", "said")
    assert plot.shapes()[-1].title == "said"
    assert [each.text for each in plot.shapes() if "axis" in each.attributes[0][1]] == ["x", "y"]


def test_lines_break_at_what_is_no_number() -> None:
    assert path([(0, 0), (math.nan, 1), (2, 2), (3, 3)]) == "M0 0M2 2L3 3"
    assert dots([(1, 2), (3, 4)]) == "M1 2h0M3 4h0"


def test_a_table_that_is_too_large_says_how_many_rows_it_lacks() -> None:
    rows = [[place, "x" * 100] for place in range(3000)]
    found = table_file(["a", "b"], rows)
    kept = found.address.count("%0D%0A") - 1
    assert 0 < kept == 3000 - found.left_out < 3000
    assert len(found.address) < 1.2 * MOST_BYTES
