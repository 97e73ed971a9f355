"""Axes of a figure: scales, ticks, names, and what is drawn between them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treeopt.report.html.shapes import Entry, Figure, Shape, dots, path, shape

WIDTH, HEIGHT = 460.0, 300.0
"""Pixels of a figure beside others; a narrow window makes it smaller."""
LEFT, RIGHT, TOP, BOTTOM = 52.0, 22.0, 10.0, 44.0
ROW = 34.0
"""Pixels of a row: its name, and below it what is drawn."""
MOST_TICKS = 7
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From numbers to pixels, on a straight or a logarithmic axis."""

    low: float
    high: float
    start: float
    """Pixel of the lowest number."""
    end: float
    base: int = 0
    """Of the logarithm that ticks follow, 2 or 10; 0 for a straight axis."""

    def __call__(self, value: float) -> float:
        """Return the pixel of a number, which may lie outside."""
        low, high, at = (math.log(each) if self.base else each for each in (self.low, self.high, value))
        share = (at - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the numbers that are written beside the axis, all of them within it.

        >>> Scale(low=1, high=512, start=0, end=1, base=2).ticks()
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        >>> Scale(low=0, high=2.3, start=0, end=1).ticks()
        [0.0, 0.5, 1.0, 1.5, 2.0]
        """
        if self.base == 2:
            return [2**power for power in range(64) if self.low <= 2**power <= self.high]
        if self.base == 10 and self.high / self.low >= 5:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(powers) > 4 else (1, 3)
            return [
                step * 10.0**power for power in powers for step in steps if self.low <= step * 10.0**power <= self.high
            ]
        low, high = sorted((self.low, self.high))
        rough = (high - low) / (MOST_TICKS - 1) or 1.0
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(each * size for each in STEPS if each * size >= rough * (1 - 1e-9))
        first = math.ceil(low / step - 1e-9)
        return [round(step * place, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def around(values: Iterable[float], *, room: float = 1.15) -> tuple[float, float]:
    """Return ends of a logarithmic axis with room around all values, which are above 0."""
    known = list(values)
    return min(known) / room, max(known) * room


def axis_end(values: Iterable[float], highs: Iterable[float]) -> float:
    """Return where an axis from 0 ends: behind plain decoding, all values, and intervals unless they hide the values.

    >>> axis_end([1.5, 2.0], [2.1, 2.5]), axis_end([1.5, 2.0], [2.1, 1e9])
    (2.6, 4.16)
    """
    most = max([1.0, *values])
    return round(1.04 * min(max([most, *highs]), 2 * most), 6)


class Plot:
    """A figure between two axes, drawn piece by piece.

    Args:
        x: ends of the horizontal axis.
        y: ends of the vertical one.
        names: of both axes.
        bases: of their logarithms; 0 for straight ones.
        size: pixels of the whole.
        whole: whether only whole numbers stand beside the axes.
        numbered_y: whether numbers stand there at all.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        bases: tuple[int, int] = (0, 0),
        size: tuple[float, float] = (WIDTH, HEIGHT),
        whole: bool = False,
        numbered_y: bool = True,
    ) -> None:
        self.width, self.height = size
        self.x = Scale(low=x[0], high=x[1], start=LEFT if numbered_y else RIGHT, end=self.width - RIGHT, base=bases[0])
        self.y = Scale(low=y[0], high=y[1], start=self.height - BOTTOM, end=TOP, base=bases[1])
        self._names, self._whole, self._numbered_y = names, whole, numbered_y
        self._drawn: list[Shape] = []

    @classmethod
    def of_rows(cls, x: tuple[float, float], name: str, rows: int, *, base: int = 0) -> "Plot":
        """Return a figure with a horizontal axis below rows that say themselves what they are."""
        size = WIDTH, TOP + BOTTOM + ROW * rows
        return cls(x, (0.0, 1.0), (name, ""), bases=(base, 0), size=size, numbered_y=False)

    def add(self, *shapes: Shape) -> None:
        """Draw shapes whose places are pixels already."""
        self._drawn += shapes

    def line(self, points: Sequence[tuple[float, float]], kind: str, title: str = "") -> None:
        """Draw straight lines through points."""
        self.add(shape("path", f"line {kind}", d=path([(self.x(x), self.y(y)) for x, y in points]), title=title))

    def dots(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw many small dots of which nothing is said."""
        self.add(shape("path", f"dots {kind}", d=dots([(self.x(x), self.y(y)) for x, y in points])))

    def dot(self, x: float, y: float, kind: str, title: str, radius: float = 4.0) -> None:
        """Draw one dot of which something is said."""
        self.add(shape("circle", f"dot {kind}", cx=self.x(x), cy=self.y(y), r=radius, title=title))

    def interval(self, x: float, low: float, high: float, kind: str) -> None:
        """Draw an upright line between two numbers of the vertical axis."""
        at = self.x(x)
        self.add(shape("path", f"line {kind}", d=path([(at, self.y(low)), (at, self.y(high))])))

    def across(self, y: float, low: float, high: float, kind: str) -> None:
        """Draw a level line between two numbers of the horizontal axis."""
        at = self.y(y)
        self.add(shape("path", f"line {kind}", d=path([(self.x(low), at), (self.x(high), at)])))

    def star(self, x: float, y: float, title: str) -> None:
        """Mark the choice."""
        self.add(shape("path", "star choice", d=star(self.x(x), self.y(y)), title=title))

    def row_name(self, row: int, text: str) -> None:
        """Write what a row is above it; the browser, which alone knows the letters' widths, shortens what has no room."""
        width = self.width - 2 * RIGHT
        self.add(shape("foreignObject", "label", x=RIGHT, y=TOP + ROW * row - 2, width=width, height=17, text=text))

    def shapes(self) -> tuple[Shape, ...]:
        """Return the axes and all that was drawn between them."""
        return (*self._axes(), *self._drawn)

    def figure(self, *, name: str, title: str, caption: str, legend: tuple[Entry, ...] = ()) -> Figure:
        """Return all of it with what is said of it; arguments as of `Figure`."""
        return Figure(
            name=name,
            title=title,
            caption=caption,
            shapes=self.shapes(),
            legend=legend,
            width=self.width,
            height=self.height,
        )

    def _axes(self) -> list[Shape]:
        left, right, bottom = self.x.start, self.x.end, self.y.start
        found = []
        for value in self._ticks(self.y) if self._numbered_y else ():
            at = self.y(value)
            found.append(shape("path", "grid", d=path([(left, at), (right, at)])))
            found.append(shape("text", "tick end", x=left - 6, y=at + 4, text=f"{value:g}"))
        ticks = self._ticks(self.x)
        every = -(-len(ticks) // 10)
        for value in ticks[::every]:
            found.append(shape("path", "grid", d=path([(self.x(value), bottom), (self.x(value), bottom + 4)])))
            found.append(shape("text", "tick middle", x=self.x(value), y=bottom + 17, text=f"{value:g}"))
        middle = (TOP + bottom) / 2
        found.append(shape("text", "axis middle", x=(left + right) / 2, y=self.height - 8, text=self._names[0]))
        if self._names[1]:
            turned = f"rotate(-90 12 {middle:.1f})"
            found.append(shape("text", "axis middle", x=12, y=middle, transform=turned, text=self._names[1]))
        return found

    def _ticks(self, scale: Scale) -> list[float]:
        return [value for value in scale.ticks() if value == int(value)] if self._whole else scale.ticks()


def star(x: float, y: float, radius: float = 9.0) -> str:
    """Return the outline of a star of five points."""
    corners = [
        (x + r * math.sin(turn * math.pi / 5), y - r * math.cos(turn * math.pi / 5))
        for turn, r in ((turn, radius if turn % 2 == 0 else 0.42 * radius) for turn in range(10))
    ]
    return path(corners) + "Z"
