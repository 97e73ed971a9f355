"""Races in engines as a picture: a panel for each engine, speedup over draft tokens, promised beside measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.panels import PanelGrid
from treeopt.pictures.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    grid_lines,
    legend_below,
    name_axes,
    shown,
    whole_numbers,
)
from treeopt.records.results import EngineBench

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = PanelGrid(
    width=190.0, height=170.0, left=46.0, gap=34.0, above=24.0, below=78.0, columns=4, least_width=418.0
)


def save_engine_figure(benches: Sequence[EngineBench], path: Path | str, *, title: str, subtitle: str = "") -> None:
    """Draw races into an SVG, PNG or PDF file; equal races give equal bytes.

    Args:
        benches: at least one; those of one engine share a panel.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.
        subtitle: further conditions.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(benches, title=title, subtitle=subtitle), path)


def _draw(benches: Sequence[EngineBench], *, title: str, subtitle: str) -> "Figure":
    engines = list(dict.fromkeys((each.engine, each.version) for each in benches))
    figure, panels = _PANELS.begin(len(engines), title=title, subtitle=subtitle)
    for number, (axes, (engine, version)) in enumerate(zip(panels, engines, strict=True)):
        _draw_panel(axes, [each for each in benches if (each.engine, each.version) == (engine, version)])
        first = _PANELS.begins_row(number)
        name_axes(axes, shown(engine), "draft tokens", "speedup over plain decoding" if first else "")
        if first:
            legend_below(axes, columns=3)
    return figure


def _draw_panel(axes: "Axes", benches: Sequence[EngineBench]) -> None:
    """Draw the races of one engine: what was promised as a line, what was measured as points, the choice in a ring."""
    for number, bench in enumerate(benches):
        first = number == 0
        promised = [(row.length, row.predicted_speedup) for row in bench.rows if row.predicted_speedup is not None]
        axes.plot(
            [length for length, _ in promised],
            [speedup for _, speedup in promised],
            color=ORANGE,
            linewidth=1.4,
            alpha=0.8,
            label="promised" if first else None,
            zorder=2,
        )
        lengths, speedups = [row.length for row in bench.rows], [row.speedup for row in bench.rows]
        axes.plot(
            lengths,
            speedups,
            "o",
            color=BLUE,
            markersize=3.6,
            alpha=0.85,
            label="measured" if first else None,
            zorder=3,
        )
        (chosen,) = [row for row in bench.rows if row.chosen]
        axes.plot(
            [chosen.length],
            [chosen.speedup],
            "o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=INK,
            label="chosen" if first else None,
            zorder=4,
        )
    axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.set_ylim(0, 1.08 * max(max(row.speedup, row.predicted_speedup or 0) for each in benches for row in each.rows))
    grid_lines(axes)
    whole_numbers(axes.xaxis)
