"""Panels below a heading: all figures are laid out here, each panel with its legend below it, where it covers nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.pictures.style import (
    INK,
    MUTED,
    PALE,
    POINTS,
    WHITE,
    Heading,
    cut,
    house_style,
    shown,
    text_width,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 400.0
"""Points of a panel: on a telephone its letters are 9 pixels high, in a column of a page 13."""
TICK_SIZE, NAME_SIZE, TITLE_SIZE, LEGEND_SIZE = 9.5, 10.5, 11.0, 10.0
LEFT, RIGHT = 50.0, 16.0
_MARGIN, _LINE = 10.0, 15.0
_NAME_BELOW, _END = 36.0, 10.0
"""Points that ticks and the name of the horizontal axis take, and below the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Axes of a figure, without those of other panels."""

    draw: Callable[["Axes"], None]
    """Draws into axes of their final size; artists with a label make the legend."""
    title: str
    x: str
    """Name of the horizontal axis with its unit."""
    y: str = ""
    height: float = 220.0
    """Points of the axes."""
    left: float = LEFT
    """Points for the vertical axis."""
    above: float = 8.0
    """Points for what is drawn above the axes; a title has 20 of its own."""
    note: str = ""
    """A line above the legend."""


def compose(panels: Sequence[Panel], *, title: str = "", subtitle: str = "", columns: int = 1) -> "Figure":
    """Return a figure of panels, row by row; without a title panels have none either, for pages that write them."""
    from matplotlib.figure import Figure

    columns = min(len(panels), columns)
    width = columns * WIDTH
    heading = Heading.fitting(title, subtitle, width=width)
    with house_style():
        figure = Figure(figsize=(width / POINTS, _GUESS / POINTS), facecolor=WHITE)
        placed = [_draw(figure, panel, width, titled=bool(title)) for panel in panels]
        rows = [placed[first : first + columns] for first in range(0, len(placed), columns)]
        height = heading.height + sum(max(each.height for each in row) for row in rows)
        figure.set_size_inches(width / POINTS, height / POINTS)
        top = height - heading.height
        for row in rows:
            for column, each in enumerate(row):
                each.settle(column * WIDTH, top, width, height)
            top -= max(each.height for each in row)
        heading.draw(figure)
    return figure


def legend_patch(axes: "Axes", colour: str, label: str, *, density: float = 1.0) -> None:
    """Add an entry for an area to the legend."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, edgecolor="none", alpha=density, label=label))


_GUESS = 1000.0
"""Height of a figure until those of its panels are known: axes have their final size from the start."""
Entry = tuple["Artist", str]


@dataclass(frozen=True, slots=True)
class _Placed:
    panel: Panel
    axes: "Axes"
    above: float
    legend: list[list[Entry]]

    @property
    def height(self) -> float:
        lines = len(self.legend) + bool(self.panel.note and self.legend)
        return self.above + self.panel.height + _NAME_BELOW + _LINE * lines + _END

    def settle(self, left: float, top: float, width: float, height: float) -> None:
        """Move the axes to their place, and write the legend below them."""
        panel = self.panel
        bottom = top - self.above - panel.height
        inner = WIDTH - panel.left - RIGHT
        self.axes.set_position(((left + panel.left) / width, bottom / height, inner / width, panel.height / height))
        x, y = (_MARGIN - panel.left) / inner, -_NAME_BELOW
        if panel.note and self.legend:
            place = (x, (y - 0.7 * LEGEND_SIZE) / panel.height)
            self.axes.text(*place, panel.note, transform=self.axes.transAxes, fontsize=LEGEND_SIZE, color=MUTED)
            y -= _LINE
        for line in self.legend:
            _write_line(self.axes, line, (x, y / panel.height))
            y -= _LINE


def _draw(figure: "Figure", panel: Panel, width: float, *, titled: bool) -> _Placed:
    inner = WIDTH - panel.left - RIGHT
    axes = figure.add_axes((0, 0, inner / width, panel.height / _GUESS))
    axes.tick_params(labelsize=TICK_SIZE, colors=MUTED, length=3)
    axes.spines[:].set_color(PALE)
    panel.draw(axes)
    if titled:
        text = cut(panel.title, WIDTH - panel.left - 4, TITLE_SIZE, bold=True)
        axes.set_title(text, loc="left", y=1.0, pad=panel.above, fontsize=TITLE_SIZE, weight="bold", color=INK)
    axes.set_xlabel(panel.x, fontsize=NAME_SIZE, color=MUTED)
    axes.set_ylabel(panel.y, fontsize=NAME_SIZE, color=MUTED)
    return _Placed(panel, axes, panel.above + 20.0 * titled, _lines(axes))


def _lines(axes: "Axes") -> list[list[Entry]]:
    """Return the entries of the legend in lines that fit."""
    room = WIDTH - 2 * _MARGIN
    lines: list[list[Entry]] = []
    left = 0.0
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        text = cut(shown(label), room - 3 * LEGEND_SIZE, LEGEND_SIZE)
        needed = text_width(text, LEGEND_SIZE) + 4.3 * LEGEND_SIZE
        if not lines or needed > left:
            lines.append([])
            left = room + 1.6 * LEGEND_SIZE
        lines[-1].append((handle, text))
        left -= needed
    return lines


def _write_line(axes: "Axes", line: list[Entry], place: tuple[float, float]) -> None:
    from matplotlib.legend import Legend

    legend = Legend(
        axes,
        [handle for handle, _ in line],
        [label for _, label in line],
        loc="upper left",
        bbox_to_anchor=place,
        bbox_transform=axes.transAxes,
        ncols=len(line),
        frameon=False,
        fontsize=LEGEND_SIZE,
        labelcolor=MUTED,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.8,
        handletextpad=0.6,
        columnspacing=1.6,
    )
    axes.add_artist(legend)
