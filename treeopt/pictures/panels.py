"""Panels of one size below a heading, in rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.pictures.style import POINTS, WHITE, Heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelGrid:
    """Sizes of panels and of the room around them, all in points."""

    width: float
    height: float
    left: float
    """Before the first panel, for the name of its axis."""
    gap: float
    """Behind every panel."""
    above: float
    below: float
    columns: int
    """Most panels in a row."""
    least_width: float
    """Of the whole picture, so that headings have room."""

    def begin(self, count: int, *, title: str, subtitle: str) -> "tuple[Figure, list[Axes]]":
        """Return a picture with its heading, and the axes of so many panels, row by row."""
        from matplotlib.figure import Figure

        columns = min(count, self.columns)
        rows = -(-count // columns)
        width = max(self.least_width, self.left + columns * (self.width + self.gap))
        heading = Heading.fitting(title, subtitle, width=width)
        height = heading.height + rows * (self.above + self.height + self.below)
        figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
        heading.draw(figure)
        panels = []
        for number in range(count):
            row, column = divmod(number, columns)
            left = self.left + column * (self.width + self.gap)
            bottom = height - heading.height - (row + 1) * (self.above + self.height) - row * self.below
            place = (left / width, bottom / height, self.width / width, self.height / height)
            panels.append(figure.add_axes(place))
        return figure, panels

    def begins_row(self, number: int) -> bool:
        """Return whether a panel, counted from 0, is the first of its row."""
        return number % self.columns == 0
