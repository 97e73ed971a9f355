"""All methods as a figure: a bar per method and temperature, what was predicted marked on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    INK,
    MUTED,
    PALE,
    POINTS,
    SERIES,
    WHITE,
    Heading,
    legend_below,
    name_axes,
    shown,
    size_of,
    text_width,
    wrapped,
)
from treeopt.records.results import NotRun, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _RIGHT, _BELOW, _NAME_GAP = 700.0, 46.0, 68.0, 8.0  # points
_BAR, _LEAST_ROW = 12.0, 28.0
_NAME_SIZE, _RULE_SIZE, _VALUE_SIZE, _REASON_SIZE = 9.0, 7.0, 7.5, 7.0


def save_methods_figure(rows: Sequence[Row | NotRun], path: Path | str, *, title: str, subtitle: str = "") -> None:
    """Draw the speedups of all methods into an SVG, PNG or PDF file; equal rows give equal bytes.

    Args:
        rows: what to draw; a method that could not run has its reason in the place of a bar.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.
        subtitle: further conditions; rules and temperatures are written beside the bars.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(rows, title=title, subtitle=subtitle), path)


def _draw(rows: Sequence[Row | NotRun], *, title: str, subtitle: str = "") -> "Figure":
    """Return the picture; arguments as for `save_methods_figure`."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.method for row in rows))
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    ran = [row for row in rows if isinstance(row, Row)]
    heading = Heading.fitting(title, subtitle, width=_WIDTH)
    row_height = max(_LEAST_ROW, _BAR * (len(temperatures) + 0.6))
    body = row_height * len(names)
    height = heading.height + body + _BELOW
    left = 2 * _NAME_GAP + max(text_width(shown(name), _NAME_SIZE) for name in names)
    left = max(left, *(2 * _NAME_GAP + text_width(_rules(name, ran), _RULE_SIZE) for name in names))
    figure = Figure(figsize=(_WIDTH / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    axes = figure.add_axes((left / _WIDTH, _BELOW / height, 1 - (left + _RIGHT) / _WIDTH, body / height))
    axes.set_xlim(0, 1.02 * max([1.0, *(value for row in ran for value in (row.speedup, row.predicted_speedup))]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    thickness = _BAR / row_height
    for number, temperature in enumerate(temperatures):
        shift = (number - (len(temperatures) - 1) / 2) * thickness
        chosen = [(names.index(row.method) + shift, row) for row in rows if row.temperature == temperature]
        _draw_bars(axes, chosen, temperature, 0.84 * thickness, SERIES[number % len(SERIES)])
    _name_rows(axes, names, ran)
    name_axes(axes, "", "tokens per second over plain decoding, measured", "")
    axes.axvline(1.0, color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.tick_params(length=0)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.plot([], [], color=INK, marker="|", markersize=9, markeredgewidth=1.8, linestyle="none", label="predicted")
    legend_below(axes, columns=len(temperatures) + 1, title="below each name: the rules that it verified by")
    return figure


def _draw_bars(
    axes: "Axes", placed: Sequence[tuple[float, Row | NotRun]], temperature: float, thickness: float, colour: str
) -> None:
    """Draw one temperature: bars, what was predicted as a dark line with a white rim, and the number behind both."""
    from matplotlib.patheffects import withStroke

    ran = [(place, row) for place, row in placed if isinstance(row, Row)]
    places = [place for place, _ in ran]
    label = f"temperature {temperature:g}"
    axes.barh(places, [row.speedup for _, row in ran], thickness, color=colour, label=label, zorder=2)
    axes.vlines(
        [row.predicted_speedup for _, row in ran],
        [place - 0.62 * thickness for place in places],
        [place + 0.62 * thickness for place in places],
        colors=INK,
        linewidth=1.8,
        path_effects=[withStroke(linewidth=3.6, foreground=WHITE)],
        zorder=3,
    )
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
    for place, row in placed:
        if isinstance(row, Row):
            text = f"{row.speedup:.2f}"
            room = (row.predicted_speedup - row.speedup) * size_of(axes)[0] / axes.get_xlim()[1]
            behind_both = -5 < room < text_width(text, _VALUE_SIZE) + 10
            end = max(row.speedup, row.predicted_speedup) if behind_both else row.speedup
            axes.annotate(text, (end, place), (5, 0), fontsize=_VALUE_SIZE, color=INK, **style)
        else:
            _write_reason(axes, place, row, style)


def _write_reason(axes: "Axes", place: float, row: NotRun, style: dict[str, Any]) -> None:
    """Write why a method could not run, in one line that is cut where it has to be."""
    room = size_of(axes)[0] - 16
    first, *others = wrapped(f"not run: {row.reason}", room, _REASON_SIZE)
    style = style | {"bbox": {"facecolor": WHITE, "edgecolor": "none", "pad": 1.0}}
    axes.annotate(f"{first} …" if others else first, (0, place), (4, 0), fontsize=_REASON_SIZE, color=MUTED, **style)


def _name_rows(axes: "Axes", names: Sequence[str], ran: Sequence[Row]) -> None:
    """Write each method's name, and below it the rules that it verified by."""
    axes.set_yticks([])
    for number, name in enumerate(names):
        rules = _rules(name, ran)
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "annotation_clip": False}
        lift = 4.0 if rules else 0.0
        at = (0.0, float(number))
        axes.annotate(
            shown(name), at, (-_NAME_GAP, lift), va="center_baseline", fontsize=_NAME_SIZE, color=INK, **style
        )
        if rules:
            axes.annotate(
                rules, at, (-_NAME_GAP, -6.5), va="center_baseline", fontsize=_RULE_SIZE, color=MUTED, **style
            )


def _rules(name: str, ran: Sequence[Row]) -> str:
    """Return the rules of a method, each once."""
    return shown(", ".join(dict.fromkeys(row.rule for row in ran if row.method == name)))
