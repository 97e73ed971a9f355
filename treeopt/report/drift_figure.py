"""Streams that change as a picture: a panel for each, tokens per second text by text, every way a line."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.panels import PanelGrid
from treeopt.pictures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    grid_lines,
    legend_below,
    name_axes,
    shown,
)
from treeopt.records.drift import DriftStream, TimedStream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = PanelGrid(
    width=210.0, height=150.0, left=50.0, gap=40.0, above=24.0, below=78.0, columns=3, least_width=546.0
)
_WAYS = {"fixed": (MUTED, "plan made before"), "adapted": (BLUE, "re-calibrated"), "learning": (GREEN, "learning")}
_WAYS |= {"best": (ORANGE, "plan made behind")}


def save_drift_figure(rows: Sequence[DriftStream], path: Path | str, *, title: str, subtitle: str = "") -> None:
    """Draw streams into an SVG, PNG or PDF file; equal streams give equal bytes.

    Args:
        rows: at least one, each with a panel.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.
        subtitle: further conditions.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(rows, title=title, subtitle=subtitle), path)


def _draw(rows: Sequence[DriftStream], *, title: str, subtitle: str) -> "Figure":
    figure, panels = _PANELS.begin(len(rows), title=title, subtitle=subtitle)
    for number, (axes, row) in enumerate(zip(panels, rows, strict=True)):
        _draw_panel(axes, row)
        first = _PANELS.begins_row(number)
        name_axes(axes, shown(row.name), "tokens of the stream", "tokens per second" if first else "")
        if first:
            legend_below(axes, columns=2)
    return figure


def _draw_panel(axes: "Axes", row: DriftStream) -> None:
    fastest = 0.0
    for way, (colour, label) in _WAYS.items():
        stream: TimedStream | None = getattr(row, way)
        if stream is None:
            continue
        ends = list(accumulate(text.tokens for text in stream.texts))
        rates = [text.tokens / text.seconds for text in stream.texts]
        fastest = max(fastest, *rates)
        axes.plot(ends, rates, "o-", color=colour, linewidth=1.2, markersize=2.2, alpha=0.9, label=label)
    if row.drift_text:
        before = sum(text.tokens for text in row.fixed.texts[: row.drift_text])
        axes.axvline(before, color=INK, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.set_ylim(0, 1.08 * fastest)
    axes.set_xlim(left=0)
    grid_lines(axes)
