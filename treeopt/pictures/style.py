"""What all figures share: colours for every kind of colour vision and for dark paper, text that fits, plain axes."""

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

# Okabe and Ito (2008), Color Universal Design: told apart with every kind of colour vision.
BLUE, ORANGE, GREEN, SKY = "#0072b2", "#e69f00", "#009e73", "#56b4e9"
VERMILLION, PURPLE = "#d55e00", "#cc79a7"
INK, MUTED, LINE, PALE, WHITE = "#24292f", "#57606a", "#b6bcc4", "#e4e7eb", "#ffffff"
"""Of text and lines, from dark to light."""
SERIES = (BLUE, ORANGE, GREEN, SKY, PURPLE)
"""Of things that are told apart by colour, in this order."""
TREE, CHAIN, PLAIN = BLUE, ORANGE, MUTED
"""Of the kinds of an option, by `treeopt.planner.Option.kind`."""
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
"""Every colour of a figure by the name of its CSS variable."""
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
"""The same on dark paper."""
PAPER = {"light": "#f6f8fa", "dark": "#12161c"}
"""Of a page around its figures."""
TINTS = 20
"""Steps from paper to the colour of trees."""


def tint(share: float) -> str:
    """Return the colour of trees mixed with paper, in `TINTS` steps.

    >>> tint(1.0) == TREE, tint(0.0) == WHITE
    (True, True)
    """
    share = round(TINTS * share) / TINTS
    parts = [(int(WHITE[at : at + 2], 16), int(TREE[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(paper + share * (colour - paper)):02x}" for paper, colour in parts)


FONT = "DejaVu Sans"
FONTS = f"{FONT},Verdana,sans-serif"
"""In SVG, where text stays text: Verdana's letters are as wide as those that places were computed for."""
POINTS = 72.0
"""To the inch; all lengths of figures are points."""
_STYLE = {"svg.hashsalt": "treeopt", "svg.fonttype": "none", "font.family": FONT, "text.parse_math": False}


def house_style() -> AbstractContextManager[Any]:
    """Return the context in which figures are made and written: no style of the user's, equal bytes for equal figures."""
    import matplotlib.style

    return matplotlib.style.context(["default", _STYLE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Title and subtitle, broken into lines so that they fit into a figure's width."""

    title: tuple[str, ...]
    subtitle: tuple[str, ...]
    size: float
    """Font size of the subtitle."""
    margin: float

    @classmethod
    def fitting(cls, title: str, subtitle: str, *, width: float, size: float = 9.5, margin: float = 14.0) -> "Heading":
        """Return the heading of a figure of a width; an empty text takes no line."""
        room = width - 2 * margin
        return cls(
            title=wrapped(title, room, 1.25 * size, bold=True) if title else (),
            subtitle=wrapped(subtitle, room, size) if subtitle else (),
            size=size,
            margin=margin,
        )

    @property
    def height(self) -> float:
        """Points of the figure's height, with the margin above and the gap below."""
        lines = 1.25 * len(self.title) + len(self.subtitle)
        return (1.45 * lines + 1.2) * self.size if lines else 0.0

    def draw(self, figure: "Figure") -> None:
        """Write it from the upper left corner on."""
        width, height = (POINTS * inches for inches in figure.get_size_inches())
        y = height - 0.9 * self.size
        for lines, size, weight, colour in (
            (self.title, 1.25 * self.size, "bold", INK),
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


def cut(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Return a line of text that is no wider than `width` points; a missing end is marked."""
    text = shown(text[:400])
    if text_width(text, size, bold=bold) <= width:
        return text
    while text and text_width(f"{text}…", size, bold=bold) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def shown(text: str) -> str:
    """Return a text with what figures cannot hold replaced: control characters, halves of pairs, missing glyphs."""
    return "".join(_shown(letter) for letter in text)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in points."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(bold), ismath=False)
    return float(width) * size / _UNIT * (_HINTED if bold else 1.0)


def grid_lines(axes: "Axes", axis: Literal["x", "y"] = "y") -> None:
    """Draw pale lines across, behind what is shown, and no frame above and on the right."""
    axes.grid(axis=axis, color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axis: "Axis") -> None:
    """Write ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def plain_numbers(axis: "Axis") -> None:
    """Write 3, 1, 0.3, 0.1 on a logarithmic axis whose limits are set, not powers; of a short one 5, 2, 1, 0.5."""
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
"""Font size at which widths are measured: they grow with it."""


def _shown(letter: str) -> str:
    if letter.isspace():
        return letter if letter == "\u2009" else " "
    return letter if letter.isprintable() and _has_glyph(letter) else "\ufffd"


_HINTED = 1.03
"""Bold letters of PNG files are up to so much wider, because they begin at whole pixels."""


@functools.cache
def _has_glyph(letter: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont(_font(bold=False))).get_char_index(ord(letter)))


@functools.cache
def _font(bold: bool) -> "FontProperties":
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FONT, size=_UNIT, weight="bold" if bold else "normal")
