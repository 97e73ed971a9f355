"""Settings under loads as a picture: tokens per second, and time per token, over the rate at which requests arrive."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    INK,
    MUTED,
    POINTS,
    SERIES,
    WHITE,
    Heading,
    grid_lines,
    legend_below,
    name_axes,
)
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.settings import PLAIN, SCHEDULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL, _HEIGHT, _LEFT, _GAP, _BELOW, _TOP = 290.0, 210.0, 60.0, 70.0, 110.0, 26.0  # points
MOST_LINES = 5
"""Beside plain decoding and the schedule, the fixed settings that are best at some rate come first."""


def save_simulation_figure(outcomes: Sequence[Outcome], path: Path | str, *, title: str, subtitle: str = "") -> None:
    """Draw settings under at least two rates into an SVG, PNG or PDF file; equal outcomes give equal bytes.

    Args:
        outcomes: the same settings at every rate.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.
        subtitle: the load.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(outcomes, title=title, subtitle=subtitle), path)


def _draw(outcomes: Sequence[Outcome], *, title: str, subtitle: str) -> "Figure":
    from matplotlib.figure import Figure

    width = _LEFT + 2 * _PANEL + _GAP + 24
    heading = Heading.fitting(title, subtitle, width=width)
    height = heading.height + _TOP + _HEIGHT + _BELOW
    figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    names = drawn_settings(outcomes)
    for column, (name, y) in enumerate((("Throughput", "tokens per second"), ("Latency", "ms per token"))):
        left = _LEFT + column * (_PANEL + _GAP)
        axes = figure.add_axes((left / width, _BELOW / height, _PANEL / width, _HEIGHT / height))
        _draw_panel(axes, outcomes, names, latency=column == 1)
        name_axes(axes, name, "requests a second", y)
        if column == 0:
            legend_below(axes, columns=2)
    return figure


def drawn_settings(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the names of those that are drawn: plain decoding, the schedule, and fixed ones that are fast somewhere."""
    best: dict[str, float] = {}
    for rate in {each.rate_per_s for each in outcomes}:
        at_rate = [each for each in outcomes if each.rate_per_s == rate]
        least_s = min(each.token_s for each in at_rate)
        for each in at_rate:
            best[each.name] = max(best.get(each.name, 0.0), least_s / each.token_s)
    fixed = sorted((name for name in best if name not in (PLAIN, SCHEDULE)), key=lambda name: -best[name])[:MOST_LINES]
    order = list(dict.fromkeys(each.name for each in outcomes))
    return [name for name in order if name in (PLAIN, SCHEDULE, *fixed)]


def _draw_panel(axes: "Axes", outcomes: Sequence[Outcome], names: Sequence[str], *, latency: bool) -> None:
    colours = iter(SERIES)
    for name in names:
        own = sorted((each for each in outcomes if each.name == name), key=lambda each: each.rate_per_s)
        colour = {PLAIN: MUTED, SCHEDULE: INK}.get(name) or next(colours)
        rates = [each.rate_per_s for each in own]
        values = [1000 * each.token_s if latency else each.tokens_per_s for each in own]
        axes.plot(
            rates,
            values,
            color=colour,
            linewidth=2.0 if name == SCHEDULE else 1.3,
            linestyle="--" if name == PLAIN else "-",
            marker="o",
            markersize=3,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    grid_lines(axes)
