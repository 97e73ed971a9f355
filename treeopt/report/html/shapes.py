"""What a figure of the page is made of: shapes of SVG, whose texts are escaped only when they are written."""

import math
import unicodedata
from dataclasses import dataclass

MOST_LETTERS = 80
"""Of a name in a heading or a figure; tables have it whole."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One element of SVG."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    text: str = ""
    title: str = ""
    """What is said of it when the pointer is above it."""


def shape(tag: str, kind: str, *, text: str = "", title: str = "", **places: float | str) -> Shape:
    """Return an element of a class, with its places in pixels of the figure.

    >>> shape("rect", "cell", x=1.26, stroke_width=2).attributes
    (('class', 'cell'), ('x', '1.3'), ('stroke-width', '2'))
    """
    named = (
        (name.replace("_", "-"), value if isinstance(value, str) else number(value)) for name, value in places.items()
    )
    return Shape(tag, (("class", kind), *named), text, title)


def number(value: float) -> str:
    """Return a length with one digit after the point, where it needs one.

    >>> number(3.0), number(3.14159)
    ('3', '3.1')
    """
    return f"{value:.1f}".removesuffix(".0")


def path(points: list[tuple[float, float]]) -> str:
    """Return straight lines through points as SVG has them; the line is broken at points that are no numbers.

    >>> path([(0, 0), (1, 2), (float("nan"), 0), (5, 5)])
    'M0 0L1 2M5 5'
    """
    text, begin = "", "M"
    for x, y in points:
        if math.isnan(x) or math.isnan(y):
            begin = "M"
            continue
        text += f"{begin}{number(x)} {number(y)}"
        begin = "L"
    return text


def dots(points: list[tuple[float, float]]) -> str:
    """Return points as a path of lines without length, which round ends make dots: shorter than circles."""
    return "".join(f"M{number(x)} {number(y)}h0" for x, y in points)


def shortened(text: str, most: int = MOST_LETTERS) -> str:
    """Return a text of at most so many letters, wide ones counted twice, the end of a longer one marked.

    >>> shortened("abcdef", 4), shortened("模型模型", 4)
    ('abc…', '模…')
    """
    room = most
    for place, letter in enumerate(text):
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return f"{text[: place - 1]}…"
    return text


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of a legend."""

    mark: str
    """`line`, `dashed`, `dot`, `ring`, `cell` or `star`."""
    colour: str
    """Class that sets the colour."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawn figure with what is said of it."""

    name: str
    """Of the element, unique on the page: letters and dashes."""
    title: str
    caption: str
    conditions: str = ""
    """What it was drawn for where that is not what its section's figures were."""
    shapes: tuple[Shape, ...]
    legend: tuple[Entry, ...] = ()
    width: float
    height: float
    zoomed: bool = False
    """Whether it is drawn at its own size, in a frame that scrolls and zooms."""
