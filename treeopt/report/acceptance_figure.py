"""Acceptance by depth and rank as a picture: a heat map for every rule, temperature and drafter."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    INK,
    MUTED,
    POINTS,
    REACH_MAP,
    WHITE,
    Heading,
    name_axes,
    shown,
    whole_numbers,
    wrapped,
)
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.plan_text import subject
from treeopt.report.profile_words import labelled_acceptances, under

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_PANEL, _LEFT, _GAP, _TOP, _BELOW = 300.0, 46.0, 62.0, 40.0, 46.0  # points
_CELL, _LEAST, _TALLEST = 16.0, 60.0, 320.0
_COLUMNS, _SCALE = 2, 56.0
SPREAD = 0.4
"""Exponent that spreads small probabilities out, as in the pictures of trees."""
LEAST_SHOWN = 5e-4
MOST_NUMBERED = 12
"""Maps of at most so many ranks have the percentages in the cells."""


def save_acceptance_figure(profile: Profile, path: Path | str) -> None:
    """Draw every acceptance of a profile into an SVG, PNG or PDF file; equal profiles give equal bytes.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(profile), path)


def _draw(profile: Profile) -> "Figure":
    from matplotlib.figure import Figure

    maps = labelled_acceptances(profile)
    columns = min(_COLUMNS, len(maps))
    tall = [float(np.clip(_CELL * (measured.table.max_depth or 1), _LEAST, _TALLEST)) for _, measured in maps]
    rows = [max(tall[first : first + columns]) for first in range(0, len(maps), columns)]
    width = _LEFT + columns * _PANEL + (columns - 1) * _GAP + 30
    heading = Heading.fitting(subject(profile), f"acceptance by depth and rank, {under(profile)}", width=width)
    height = heading.height + sum(_TOP + row + _BELOW for row in rows) + _SCALE
    figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    colours = _colours()
    for number, (label, measured) in enumerate(maps):
        row, column = divmod(number, columns)
        left = _LEFT + column * (_PANEL + _GAP)
        top = heading.height + sum(_TOP + each + _BELOW for each in rows[:row]) + _TOP
        bottom = height - top - tall[number]
        axes = figure.add_axes((left / width, bottom / height, _PANEL / width, tall[number] / height))
        _draw_map(axes, measured, colours)
        title = "\n".join(wrapped(shown(label), _PANEL, 10, bold=True)[:2])
        name_axes(axes, title, "rank among siblings", "depth")
    _draw_scale(figure, colours, width, height)
    return figure


def _draw_map(axes: "Axes", measured: MeasuredAcceptance, colours: "ScalarMappable") -> None:
    """Draw one map; below parents of rank 0 where the parent's rank matters."""
    table = measured.table
    rows = table.rows(table.max_depth or 1)[:, 0]
    used = [rank + 1 for rank in range(table.branching) if rows[:, rank].max() >= LEAST_SHOWN]
    rows = rows[:, : max(used, default=1)]
    depths, ranks = rows.shape
    axes.imshow(
        colours.to_rgba(rows), aspect="auto", interpolation="none", extent=(-0.5, ranks - 0.5, depths + 0.5, 0.5)
    )
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    if table.position_invariant:
        axes.set_yticks([1], ["every"])
    if ranks > MOST_NUMBERED or depths > 20:
        return
    for depth in range(depths):
        for rank in range(ranks):
            value = float(rows[depth, rank])
            dark = float(np.dot(colours.to_rgba(np.array([value]))[0, :3], (0.2126, 0.7152, 0.0722))) < 0.5
            axes.text(
                *(rank, depth + 1, f"{100 * value:.0f}" if value >= 0.0995 else f"{100 * value:.1f}"),
                ha="center",
                va="center_baseline",
                fontsize=6.5,
                color=WHITE if dark else INK,
            )


def _colours() -> "ScalarMappable":
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    return ScalarMappable(PowerNorm(SPREAD, 0, 1), mpl.colormaps[REACH_MAP])


def _draw_scale(figure: "Figure", colours: "ScalarMappable", width: float, height: float) -> None:
    """Draw the colour bar at the foot, with its name."""
    axes = figure.add_axes((_LEFT / width, 26 / height, 180 / width, 8 / height))
    marks = [0.01, 0.1, 0.3, 0.6, 1.0]
    bar = figure.colorbar(colours, cax=axes, orientation="horizontal", ticks=marks)
    bar.set_ticklabels([f"{100 * value:.0f}\u2009%" for value in marks], fontsize=7, color=MUTED)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.text(0, 1.6, "accepted, given that the parent was reached", transform=axes.transAxes, fontsize=8, color=MUTED)
