"""A grid as a picture: measured speedup over predicted, every tree a point."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Float64
from treeopt.files.picture_file import save_drawing
from treeopt.pictures.labels import label_points
from treeopt.pictures.style import (
    CHAIN,
    CHOICE,
    LINE,
    MUTED,
    PALE,
    POINTS,
    TREE,
    WHITE,
    Heading,
    legend_below,
    name_axes,
)
from treeopt.planner.grid import GridRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BAND = 0.05
"""Half the width of the band around predictions that came true."""
_KINDS: dict[str, dict[str, Any]] = {
    "chain": {"label": "chains", "color": CHAIN, "marker": "D", "s": 22},
    "tree": {"label": "trees", "color": TREE, "marker": "o", "s": 26},
}
_SIDE = 430.0  # points, of the square of predictions and measurements
_LEFT, _RIGHT, _BELOW = 58.0, 20.0, 78.0
_ROOM = 0.06  # of the extent, on either side


def save_grid_figure(rows: Sequence[GridRow], path: Path | str, *, title: str, subtitle: str = "") -> None:
    """Draw a grid, the chosen tree first, into an SVG, PNG or PDF file; equal rows give equal bytes.

    Args:
        rows: what to draw.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.
        subtitle: the conditions, such as rule and temperature.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(rows, title=title, subtitle=subtitle), path)


def _draw(rows: Sequence[GridRow], *, title: str, subtitle: str = "") -> "Figure":
    """Return the picture; arguments as for `save_grid_figure`."""
    from matplotlib.figure import Figure

    width = _LEFT + _SIDE + _RIGHT
    heading = Heading.fitting(title, subtitle, width=width)
    height = heading.height + _SIDE + _BELOW
    figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    axes = figure.add_axes((_LEFT / width, _BELOW / height, _SIDE / width, _SIDE / height))
    points = np.array([[row.predicted.speedup.value, row.measured.speedup.value] for row in rows])
    tall = [
        [row.predicted.speedup.value, end]
        for row in rows
        for end in (row.measured.speedup.low, row.measured.speedup.high)
    ]
    ends = _draw_background(axes, np.concatenate([points, np.array(tall)]))
    for kind, style in _KINDS.items():
        chosen = [row.predicted.kind == kind for row in rows]
        axes.scatter(points[chosen, 0], points[chosen, 1], zorder=3, linewidths=0, **style)
    axes.scatter(
        points[:1, 0],
        points[:1, 1],
        s=110,
        facecolors="none",
        edgecolors=CHOICE,
        linewidths=1.6,
        label="the plan's choice",
        zorder=4,
    )
    bars = _draw_intervals(axes, rows)
    texts = [f"{row.predicted.tree.nodes}/{row.predicted.tree.max_depth}" for row in rows]
    label_points(axes, points, texts, lines=[ends, *bars])
    name_axes(axes, "", "predicted speedup", "measured speedup")
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(axes, columns=4, title="beside each point: nodes/depth; upright lines: 95\u2009% intervals")
    return figure


def _draw_intervals(axes: "Axes", rows: Sequence[GridRow]) -> list[Float64]:
    """Draw the 95 % interval of every measured speedup; return the lines' ends."""
    bars = [
        np.array([[row.predicted.speedup.value, end] for end in (row.measured.speedup.low, row.measured.speedup.high)])
        for row in rows
    ]
    for bar in bars:
        axes.plot(bar[:, 0], bar[:, 1], color=LINE, linewidth=0.9, zorder=2)
    return bars


def _draw_background(axes: "Axes", points: Float64) -> Float64:
    """Set the limits, draw the band and the line of predictions that come true; return the ends of that line."""
    low, high = float(points.min()), float(points.max())
    room = _ROOM * (high - low) or _ROOM * high
    low, high = max(0.0, low - room), high + room
    limits = np.array([low, high])
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    band: dict[str, Any] = {"color": PALE, "linewidth": 0, "label": f"within {BAND:.0%} of the prediction"}
    axes.fill_between(limits, limits * (1 - BAND), limits * (1 + BAND), **band)
    axes.plot(limits, limits, color=MUTED, linewidth=0.8)
    return np.stack([limits, limits], axis=1)
