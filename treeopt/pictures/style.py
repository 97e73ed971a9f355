"""What all pictures share: colours that everybody can tell apart, text that fits, and plain axes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.legend import Legend

# Okabe and Ito (2008), Color Universal Design: told apart with every kind of colour vision.
BLUE, ORANGE, GREEN, SKY = "#0072b2", "#e69f00", "#009e73", "#56b4e9"
VERMILLION, PURPLE = "#d55e00", "#cc79a7"
INK, MUTED, LINE, PALE, WHITE = "#24292f", "#57606a", "#b6bcc4", "#e4e7eb", "#ffffff"
"""Of text and lines, from dark to light."""
SERIES = (BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE)
"""Of things that are told apart by colour, in this order."""
TREE, CHAIN, PLAIN = BLUE, ORANGE, MUTED
"""Of the kinds of an option, by `treeopt.planner.Option.kind`."""
CHOICE = VERMILLION
REACH_MAP, SPEEDUP_MAP, DEPTH_MAP = "YlGnBu", "BrBG", "viridis"
"""matplotlib's names of scales whose brightness alone tells what they say (the second one: from 1 on)."""
FONT = "DejaVu Sans"
POINTS = 72.0
"""To the inch; all lengths of pictures are points."""
LEGEND_BELOW = 32.0
"""Points from axes to their legend: room for ticks and for the name of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Title and subtitle, broken into lines so that they fit into a picture's width."""

    title: tuple[str, ...]
    subtitle: tuple[str, ...]
    size: float
    """Font size of the subtitle."""
    margin: float

    @classmethod
    def fitting(cls, title: str, subtitle: str, *, width: float, size: float = 9.5, margin: float = 14.0) -> "Heading":
        """Return the heading of a picture of a width; an empty text takes no line."""
        room = width - 2 * margin
        return cls(
            title=wrapped(title, room, 1.35 * size, bold=True) if title else (),
            subtitle=wrapped(subtitle, room, size) if subtitle else (),
            size=size,
            margin=margin,
        )

    @property
    def height(self) -> float:
        """What it takes of the picture's height, the margin above it and the gap below it included."""
        lines = 1.35 * len(self.title) + len(self.subtitle)
        return (1.45 * lines + 1.2) * self.size if lines else 0.8 * self.size

    def draw(self, figure: "Figure") -> None:
        """Write it from the upper left corner on."""
        width, height = (POINTS * inches for inches in figure.get_size_inches())
        y = height - 0.9 * self.size
        for lines, size, weight, colour in (
            (self.title, 1.35 * self.size, "bold", INK),
            (self.subtitle, self.size, "normal", MUTED),
        ):
            for line in lines:
                place = self.margin / width, (y - 0.725 * size) / height
                figure.text(*place, line, fontsize=size, weight=weight, color=colour, va="center")
                y -= 1.45 * size


def wrapped(text: str, width: float, size: float, *, bold: bool = False) -> tuple[str, ...]:
    """Return the lines of a text that are no wider than `width` points, broken between words where that suffices."""
    lines = [""]
    for word in shown(text).split(" "):
        longer = f"{lines[-1]} {word}".lstrip(" ")
        if text_width(longer, size, bold=bold) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and text_width(lines[-1] + letter, size, bold=bold) > width:
                lines.append("")
            lines[-1] += letter
    return tuple(lines)


def shown(text: str) -> str:
    """Return a text with what pictures cannot hold replaced: control characters, halves of pairs, missing glyphs."""
    return "".join(_shown(letter) for letter in text)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(bold), ismath=False)
    return float(width) * size / _UNIT


def name_axes(axes: "Axes", title: str, x: str, y: str) -> None:
    """Write a title and the names of both axes, and draw everything but the data quietly."""
    axes.set_title(title, loc="left", y=1.0, pad=8, fontsize=10, weight="bold", color=INK)
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)
    axes.tick_params(labelsize=8, colors=MUTED)
    axes.spines[:].set_color(PALE)


def grid_lines(axes: "Axes") -> None:
    """Draw pale lines across, behind what is shown, and no frame above and on the right."""
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axis: "Axis") -> None:
    """Write ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def plain_numbers(axis: "Axis") -> None:
    """Write 3, 1, 0.3, 0.1 on a logarithmic axis, not powers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def legend_below(
    axes: "Axes", *, columns: int, size: float = 8.0, title: str = "", handles: "Sequence[Artist] | None" = None
) -> "Legend":
    """Write what is what below the name of the horizontal axis, where it covers nothing.

    Args:
        axes: in their final place.
        columns: of entries, filled from the top.
        size: of the letters.
        title: a line above.
        handles: the entries; by default all of the axes that have a label.
    """
    legend = axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -LEGEND_BELOW / size_of(axes)[1]),
        ncols=columns,
        frameon=False,
        fontsize=size,
        labelcolor=MUTED,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.8,
        handletextpad=0.6,
        columnspacing=1.6,
        labelspacing=0.35,
        title=title or None,
        title_fontsize=size,
        alignment="left",
    )
    legend.get_title().set_color(MUTED)
    return legend


def size_of(axes: "Axes") -> tuple[float, float]:
    """Return the width and height of axes in points."""
    scale = POINTS / axes.figure.dpi
    return float(axes.bbox.width * scale), float(axes.bbox.height * scale)


_UNIT = 100.0
"""Font size at which widths are measured: they grow with it."""


def _shown(letter: str) -> str:
    if letter.isspace():
        return letter if letter == "\u2009" else " "
    return letter if letter.isprintable() and _has_glyph(letter) else "\ufffd"


@functools.cache
def _has_glyph(letter: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont(_font(bold=False))).get_char_index(ord(letter)))


@functools.cache
def _font(bold: bool) -> "FontProperties":
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FONT, size=_UNIT, weight="bold" if bold else "normal")
