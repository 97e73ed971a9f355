"""The curves of a profile as a picture: seconds of verification and of drafting over tokens, with samples and intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    LINE,
    POINTS,
    SERIES,
    WHITE,
    Heading,
    grid_lines,
    legend_below,
    name_axes,
    plain_numbers,
    shown,
)
from treeopt.records.latency import LatencyTable
from treeopt.records.profile import Profile
from treeopt.report.plan_text import subject
from treeopt.report.profile_words import condition_name, under

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL, _HEIGHT, _LEFT, _GAP, _TOP = 330.0, 250.0, 52.0, 58.0, 26.0  # points
_LEGEND_LINE, _BELOW = 12.0, 62.0
MOST_OUTLINED = 5000
"""Samples beyond which they are pixels also in SVG and PDF."""


def save_curve_figure(profile: Profile, path: Path | str) -> None:
    """Draw the times of a profile into an SVG, PNG or PDF file; equal profiles give equal bytes.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(profile), path)


def _draw(profile: Profile) -> "Figure":
    from matplotlib.figure import Figure

    latencies = profile.step_latencies
    names = [condition_name(each) for each in latencies]
    panels: list[tuple[str, list[LatencyTable]]]
    if profile.engine is None:
        panels = [("Verification", [each.verify for each in latencies])]
        if drafts := [each.draft for each in latencies if each.draft is not None]:
            panels.append(("Drafting one level", drafts))
    else:
        panels = [("Steps of the engine, drafting included", [each.verify for each in latencies])]
    width = _LEFT + len(panels) * _PANEL + (len(panels) - 1) * _GAP + 24
    heading = Heading.fitting(subject(profile), under(profile), width=width)
    below = _BELOW + _LEGEND_LINE * min(len(names), len(SERIES) + 1)
    height = heading.height + _TOP + _HEIGHT + below
    figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    for column, (title, tables) in enumerate(panels):
        left = _LEFT + column * (_PANEL + _GAP)
        axes = figure.add_axes((left / width, below / height, _PANEL / width, _HEIGHT / height))
        _draw_tables(axes, tables, names)
        name_axes(axes, title, "tokens in a pass", "ms")
        if column == 0:
            legend_below(axes, columns=1, title="medians with 95 % intervals; small dots are samples of the first")
    return figure


def _draw_tables(axes: "Axes", tables: Sequence[LatencyTable], names: Sequence[str]) -> None:
    """Draw conditions in colours of their own, those beyond the palette's end pale."""
    _draw_samples(axes, tables[0])
    for table, name, colour in zip(tables, names, SERIES, strict=False):
        low, high = np.array([timing.interval_s for timing in table.timings]).T
        error = np.stack([table.medians_s - low, high - table.medians_s])
        axes.errorbar(
            table.tokens,
            1000 * table.medians_s,
            1000 * error,
            fmt="o-",
            color=colour,
            markersize=2.6,
            linewidth=1.2,
            elinewidth=0.9,
            label=shown(name),
            zorder=3,
        )
    others = tables[len(SERIES) :]
    for number, table in enumerate(others):
        label = f"{len(others)} more conditions" if number == 0 else None
        axes.plot(table.tokens, 1000 * table.medians_s, color=LINE, linewidth=0.9, label=label, zorder=2)
    axes.set_xscale("log", base=2)
    if all(table.medians_s.min() > 0 for table in tables):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    axes.xaxis.set_major_formatter("{x:g}")
    grid_lines(axes)


def _draw_samples(axes: "Axes", table: LatencyTable) -> None:
    counts = [len(timing.samples_s) for timing in table.timings]
    samples = np.concatenate([timing.samples_s for timing in table.timings])
    tokens = np.repeat(table.tokens, counts)
    axes.plot(tokens, 1000 * samples, ".", color=LINE, markersize=2, rasterized=len(samples) > MOST_OUTLINED, zorder=1)
