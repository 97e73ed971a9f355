"""A grid as a picture: measured speedup over predicted, every tree a point."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.figure_file import save_drawing
from treeopt.systems.grid import GridRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DARK, _MEDIUM, _PALE, _CHOSEN = "#24292f", "#57606a", "#e4e7eb", "#c8102e"
_COLOURS = {"chain": "#b0702a", "tree": "#0f5a54"}
_LABEL_WIDTH, _LABEL_HEIGHT = 0.07, 0.025  # of the axes
BAND = 0.05
"""Half the width of the band around predictions that came true."""


def save_grid_figure(rows: Sequence[GridRow], path: Path | str, *, title: str) -> None:
    """Draw a grid, the chosen tree first, into an SVG, PNG or PDF file; equal rows give equal bytes.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(rows, title), path)


def _draw(rows: Sequence[GridRow], title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 6.0), facecolor="white")
    axes = figure.add_axes((0.11, 0.1, 0.85, 0.8))
    values = [value for row in rows for value in (row.predicted.speedup.value, row.measured.speedup.value)]
    low, high = 0.95 * min(values), 1.07 * max(values)
    axes.fill_between(
        [low, high],
        [low * (1 - BAND), high * (1 - BAND)],
        [low * (1 + BAND), high * (1 + BAND)],
        color=_PALE,
        linewidth=0,
        label=f"within {BAND:.0%}",
    )
    axes.plot([low, high], [low, high], color=_MEDIUM, linewidth=0.8)
    for kind, colour in _COLOURS.items():
        chosen = [row for row in rows if row.predicted.kind == kind]
        axes.scatter(
            [row.predicted.speedup.value for row in chosen],
            [row.measured.speedup.value for row in chosen],
            s=26,
            color=colour,
            label=f"{kind}s",
            zorder=3,
        )
    for row in _apart(rows, high - low):
        axes.annotate(
            f"{row.predicted.tree.nodes}/{row.predicted.tree.max_depth}",
            (row.predicted.speedup.value, row.measured.speedup.value),
            xytext=(5, -10),
            textcoords="offset points",
            fontsize=6.5,
            color=_MEDIUM,
        )
    best = rows[0]
    axes.scatter(
        [best.predicted.speedup.value],
        [best.measured.speedup.value],
        s=120,
        facecolors="none",
        edgecolors=_CHOSEN,
        linewidths=1.6,
        label="the plan's choice",
        zorder=4,
    )
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("predicted speedup", fontsize=9, color=_MEDIUM)
    axes.set_ylabel("measured speedup (nodes/depth beside each)", fontsize=9, color=_MEDIUM)
    axes.tick_params(colors=_MEDIUM, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize=8.5)
    figure.text(0.02, 0.955, title, fontsize=11, weight="bold", color=_DARK, va="center")
    return figure


def _apart(rows: Sequence[GridRow], extent: float) -> list[GridRow]:
    """Return the rows whose points lie far enough from those before to be labelled."""
    labelled: list[GridRow] = []
    for row in rows:
        gaps = (
            (
                abs(row.predicted.speedup.value - other.predicted.speedup.value),
                abs(row.measured.speedup.value - other.measured.speedup.value),
            )
            for other in labelled
        )
        if all(across > _LABEL_WIDTH * extent or up > _LABEL_HEIGHT * extent for across, up in gaps):
            labelled.append(row)
    return labelled
