"""Style of all figures: colours for light and dark backgrounds and all kinds of colour vision, fitted text, plain axes."""

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

# Okabe and Ito (2008), Color Universal Design: distinguishable with all kinds of colour vision.
BLUE, ORANGE, GREEN, SKY = "#0072b2", "#e69f00", "#009e73", "#56b4e9"
VERMILLION, PURPLE = "#d55e00", "#cc79a7"
INK, MUTED, LINE, PALE, WHITE = "#24292f", "#57606a", "#b6bcc4", "#e4e7eb", "#ffffff"
"""Greys of text and lines, from dark to light."""
SERIES = (BLUE, ORANGE, GREEN, SKY, PURPLE)
"""Colours of series, in this order."""
TREE, CHAIN, PLAIN = BLUE, ORANGE, MUTED
"""Colours of the kinds of an option (`treeopt.planner.Option.kind`)."""
CHOICE = VERMILLION
LIGHT = {
    "tree": TREE,
    "chain": CHAIN,
    "s3": GREEN,
    "s4": SKY,
    "s6": PURPLE,
    "choice": CHOICE,
    "ink": INK,
    "muted": MUTED,
    "line": LINE,
    "pale": PALE,
    "panel": WHITE,
}
"""Colours of figures by the name of their CSS variable."""
DARK = {
    "tree": "#4aa8e8",
    "chain": ORANGE,
    "s3": "#10b981",
    "s4": "#c4e8fc",
    "s6": "#dc93bb",
    "choice": "#ff7a33",
    "ink": "#e6e9ee",
    "muted": "#a3adb9",
    "line": "#566070",
    "pale": "#2a323d",
    "panel": "#1a2028",
}
"""The same for dark backgrounds."""
PAPER = {"light": "#f6f8fa", "dark": "#12161c"}
"""Background of a page."""
TINTS = 20
"""Number of tints between white and the colour of trees."""


def tint(strength: float) -> str:
    """Return the colour of trees mixed with white, rounded to `TINTS` steps.

    >>> tint(1.0) == TREE, tint(0.0) == WHITE
    (True, True)
    """
    strength = round(TINTS * strength) / TINTS
    channels = [(int(WHITE[start : start + 2], 16), int(TREE[start : start + 2], 16)) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(white + strength * (colour - white)):02x}" for white, colour in channels)


FONT = "DejaVu Sans"
FONTS = f"{FONT},Verdana,sans-serif"
"""Font families in SVG, which contains text as text; Verdana's letters are as wide as the measured ones."""
POINTS = 72.0
"""Points per inch; all lengths of figures are points."""
_STYLE = {"svg.hashsalt": "treeopt", "svg.fonttype": "none", "font.family": FONT, "text.parse_math": False}


def house_style() -> AbstractContextManager[Any]:
    """Return the style context of all figures; the user's style is ignored, so that equal figures are equal files."""
    import matplotlib.style

    return matplotlib.style.context(["default", _STYLE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Title and subtitle, wrapped to the width of a figure."""

    title: tuple[str, ...]
    subtitle: tuple[str, ...]
    size: float
    """Font size of the subtitle."""
    margin: float

    @classmethod
    def wrap(cls, title: str, subtitle: str, *, width: float, size: float = 9.5, margin: float = 14.0) -> "Heading":
        """Return the heading of a figure; empty text takes no line."""
        line_width = width - 2 * margin
        return cls(
            title=wrap_text(title, line_width, 1.25 * size, bold=True) if title else (),
            subtitle=wrap_text(subtitle, line_width, size) if subtitle else (),
            size=size,
            margin=margin,
        )

    @property
    def height(self) -> float:
        """Height in points, including the margin above and the gap below."""
        lines = 1.25 * len(self.title) + len(self.subtitle)
        return (1.45 * lines + 1.2) * self.size if lines else 0.0

    def draw(self, figure: "Figure") -> None:
        """Write the heading at the upper left corner of a figure."""
        width, height = (POINTS * inches for inches in figure.get_size_inches())
        y = height - 0.9 * self.size
        for lines, size, weight, colour in (
            (self.title, 1.25 * self.size, "bold", INK),
            (self.subtitle, self.size, "normal", MUTED),
        ):
            for line in lines:
                position = self.margin / width, (y - 0.725 * size) / height
                figure.text(*position, line, fontsize=size, weight=weight, color=colour, va="center")
                y -= 1.45 * size


def wrap_text(text: str, width: float, size: float, *, bold: bool = False) -> tuple[str, ...]:
    """Return lines of at most `width` points, broken between words, and within words that are too long."""
    lines = [""]
    for word in printable_glyphs(text).split(" "):
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


def cut_text(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Return a line of at most `width` points; a longer text ends in an ellipsis."""
    text = printable_glyphs(text[:400])
    if text_width(text, size, bold=bold) <= width:
        return text
    while text and text_width(f"{text}…", size, bold=bold) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def printable_glyphs(text: str) -> str:
    """Return text without control characters, surrogates and missing glyphs, which figures cannot contain."""
    return "".join(map(_glyph, text))


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(bold), ismath=False)
    return float(width) * size / _UNIT * (_HINTED if bold else 1.0)


def grid_lines(axes: "Axes", axis: Literal["x", "y"] = "y") -> None:
    """Draw pale grid lines behind the data, and remove the upper and right spines."""
    axes.grid(axis=axis, color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axis: "Axis") -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def plain_numbers(axis: "Axis") -> None:
    """Label a logarithmic axis 3, 1, 0.3, 0.1 instead of with powers, a short one 5, 2, 1, 0.5; set its limits first."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 3) if high > 30 * low else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def size_of(axes: "Axes") -> tuple[float, float]:
    """Return the width and height of axes in points."""
    scale = POINTS / axes.figure.dpi
    return float(axes.bbox.width * scale), float(axes.bbox.height * scale)


_UNIT = 100.0
"""Font size at which widths are measured; they are proportional to it."""


def _glyph(letter: str) -> str:
    if letter.isspace():
        return letter if letter == "\u2009" else " "
    return letter if letter.isprintable() and _has_glyph(letter) else "\ufffd"


_HINTED = 1.03
"""How much wider bold letters of PNG files are at most, because they start at whole pixels."""


@functools.cache
def _has_glyph(letter: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont(_font(bold=False))).get_char_index(ord(letter)))


@functools.cache
def _font(bold: bool) -> "FontProperties":
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FONT, size=_UNIT, weight="bold" if bold else "normal")
