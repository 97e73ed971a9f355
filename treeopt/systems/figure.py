"""A contest as a picture: a bar per system and temperature, what was predicted marked on it."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.figure_file import save_drawing
from treeopt.systems.bench import Row
from treeopt.systems.system import NotRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DARK, _MEDIUM, _PALE, _MARK = "#24292f", "#57606a", "#e4e7eb", "#c8102e"
_BARS = ("#0f5a54", "#b0702a", "#6b7fae", "#8a5a8c")
_WIDTH, _ROW_HEIGHT = 9.5, 0.42  # inches
_REASON_LETTERS = 120


def save_systems_figure(rows: Sequence[Row | NotRun], path: Path | str, *, title: str) -> None:
    """Draw the speedups of all systems into an SVG, PNG or PDF file; equal rows give equal bytes.

    A system that did not run has its reason in the place of a bar.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(rows, title), path)


def _draw(rows: Sequence[Row | NotRun], title: str) -> "Figure":
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.system for row in rows))
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    height = 1.5 + _ROW_HEIGHT * len(names)
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.14, 0.55 / height, 0.82, 1 - 1.35 / height))
    thickness = 0.8 / len(temperatures)

    def place_of(row: Row | NotRun) -> float:
        return names.index(row.system) + (temperatures.index(row.temperature) - (len(temperatures) - 1) / 2) * thickness

    ran = [row for row in rows if isinstance(row, Row)]
    for row in rows:
        if isinstance(row, NotRun):
            said = textwrap.shorten(f"not run: {row.reason}", _REASON_LETTERS, placeholder=" …")
            axes.text(0.02, place_of(row), said, va="center", fontsize=6.5, color=_MEDIUM)
    for number, temperature in enumerate(temperatures):
        chosen = [row for row in ran if row.temperature == temperature]
        places = list(map(place_of, chosen))
        label = f"temperature {temperature:g}"
        axes.barh(places, [row.speedup for row in chosen], 0.9 * thickness, color=_BARS[number % 4], label=label)
        for place, row in zip(places, chosen, strict=True):
            axes.text(row.speedup + 0.02, place, f"{row.speedup:.2f}", va="center", fontsize=7.5, color=_DARK)
    predicted = [row.predicted_speedup for row in ran]
    marks: dict[str, Any] = {"color": _MARK, "markersize": 9, "markeredgewidth": 1.6, "linestyle": "none"}
    axes.plot(predicted, list(map(place_of, ran)), marker="|", label="predicted", **marks)
    axes.axvline(1.0, color=_MEDIUM, linewidth=0.8, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(names)), names, fontsize=9, color=_DARK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(max(row.speedup, row.predicted_speedup) for row in ran))
    axes.set_xlabel("tokens per second over plain decoding", fontsize=9, color=_MEDIUM)
    axes.tick_params(colors=_MEDIUM, length=0)
    axes.grid(axis="x", color=_PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(temperatures) + 1, frameon=False, fontsize=8.5)
    figure.text(0.02, 1 - 0.3 / height, title, fontsize=11.5, weight="bold", color=_DARK, va="center")
    return figure
