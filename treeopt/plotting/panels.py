"""Layout of all figures: panels below a heading, each with its legend below it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.plotting.style import (
    INK,
    MUTED,
    PALE,
    POINTS,
    WHITE,
    Heading,
    cut_text,
    house_style,
    printable_glyphs,
    text_width,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 400.0
"""Width of a panel in points: letters are 9 pixels high on a phone, 13 in a column of a page."""
TICK_SIZE, NAME_SIZE, TITLE_SIZE, LEGEND_SIZE = 9.5, 10.5, 11.0, 10.0
LEFT, RIGHT = 50.0, 16.0
_MARGIN, _LINE = 10.0, 15.0
_NAME_BELOW, _END = 36.0, 10.0
"""Height of ticks and name of the horizontal axis, and of the margin below the legend, in points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes of a figure."""

    draw: Callable[["Axes"], None]
    """Draws into axes of their final size; artists with a label appear in the legend."""
    title: str
    x: str
    """Name of the horizontal axis with its unit."""
    y: str = ""
    height: float = 220.0
    """Of the axes, in points."""
    left: float = LEFT
    """Width of ticks and name of the vertical axis, in points."""
    above: float = 8.0
    """Height of what is drawn above the axes, without the title, in points."""
    note: str = ""
    """A line above the legend."""


def compose(panels: Sequence[Panel], *, title: str = "", subtitle: str = "", columns: int = 1) -> "Figure":
    """Return a figure of panels, row by row; without a title panels have no titles either, because a page writes them."""
    from matplotlib.figure import Figure

    columns = min(len(panels), columns)
    width = columns * WIDTH
    heading = Heading.wrap(title, subtitle, width=width)
    with house_style():
        figure = Figure(figsize=(width / POINTS, _GUESS / POINTS), facecolor=WHITE)
        placed = [_draw(figure, panel, width, titled=bool(title)) for panel in panels]
        rows = [placed[first : first + columns] for first in range(0, len(placed), columns)]
        row_heights = [max(panel.height for panel in row) for row in rows]
        height = heading.height + sum(row_heights)
        figure.set_size_inches(width / POINTS, height / POINTS)
        top = height - heading.height
        for row, row_height in zip(rows, row_heights, strict=True):
            for column, panel in enumerate(row):
                panel.settle(column * WIDTH, top, width, height)
            top -= row_height
        heading.draw(figure)
    return figure


def legend_patch(axes: "Axes", colour: str, label: str, *, density: float = 1.0) -> None:
    """Add a coloured area to the legend."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, edgecolor="none", alpha=density, label=label))


_GUESS = 1000.0
"""Preliminary height of a figure, until the heights of its panels are known."""
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
        """Move the axes to their final position, and write the legend below them."""
        panel = self.panel
        bottom = top - self.above - panel.height
        inner = WIDTH - panel.left - RIGHT
        self.axes.set_position(((left + panel.left) / width, bottom / height, inner / width, panel.height / height))
        x, y = (_MARGIN - panel.left) / inner, -_NAME_BELOW
        if panel.note and self.legend:
            position = (x, (y - 0.7 * LEGEND_SIZE) / panel.height)
            self.axes.text(*position, panel.note, transform=self.axes.transAxes, fontsize=LEGEND_SIZE, color=MUTED)
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
        text = cut_text(panel.title, WIDTH - panel.left - 4, TITLE_SIZE, bold=True)
        axes.set_title(text, loc="left", y=1.0, pad=panel.above, fontsize=TITLE_SIZE, weight="bold", color=INK)
    axes.set_xlabel(panel.x, fontsize=NAME_SIZE, color=MUTED)
    axes.set_ylabel(panel.y, fontsize=NAME_SIZE, color=MUTED)
    return _Placed(panel, axes, panel.above + 20.0 * titled, _lines(axes))


def _lines(axes: "Axes") -> list[list[Entry]]:
    """Return the entries of the legend in lines that fit into the panel."""
    line_width = WIDTH - 2 * _MARGIN
    lines: list[list[Entry]] = []
    remaining = 0.0
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        text = cut_text(printable_glyphs(label), line_width - 3 * LEGEND_SIZE, LEGEND_SIZE)
        entry_width = text_width(text, LEGEND_SIZE) + 4.3 * LEGEND_SIZE
        if not lines or entry_width > remaining:
            lines.append([])
            remaining = line_width + 1.6 * LEGEND_SIZE
        lines[-1].append((handle, text))
        remaining -= entry_width
    return lines


def _write_line(axes: "Axes", line: list[Entry], position: tuple[float, float]) -> None:
    from matplotlib.legend import Legend

    legend = Legend(
        axes,
        [handle for handle, _ in line],
        [label for _, label in line],
        loc="upper left",
        bbox_to_anchor=position,
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
