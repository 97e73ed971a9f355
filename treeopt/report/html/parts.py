"""What the page is made of: sections of figures and of tables, each table also a file within the page."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from treeopt.pictures.panels import Panel, compose
from treeopt.pictures.svg import svg_text
from treeopt.tabular import cell_text

MOST_LETTERS = 80
"""Of a name in a heading; tables have it whole."""
MOST_SHOWN = 100
"""Rows of a table on the page; the file has more."""
MOST_BYTES = 60_000
"""Of one table's file, so that the page stays small; rows that do not fit are counted."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a text that it opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigure:
    """A figure with its title and caption."""

    name: str
    """Of the element, unique on the page: letters, digits and dashes."""
    title: str
    caption: str
    svg: str
    conditions: str = ""
    """Pair, machine and date where they are not those of its section."""
    zoomed: bool = False
    """Whether it has its own size, in a frame that scrolls and zooms."""

    @classmethod
    def of(cls, name: str, panel: Panel, caption: str, *, label: str = "", conditions: str = "") -> "PageFigure":
        """Return one panel as a figure; a label follows its title."""
        title = f"{panel.title}{f', {shortened(label, 50)}' if label else ''}"
        return cls(
            name=name,
            title=shortened(title, 160),
            caption=caption,
            svg=svg_text(compose([panel]), name=name, on_page=True),
            conditions=conditions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a header."""

    name: str
    """Of the element and the file: letters, digits and dashes."""
    title: str
    rows: tuple[Mapping[str, Any], ...]
    """All with the same keys."""

    @classmethod
    def of(cls, name: str, title: str, rows: Iterable[Mapping[str, Any]]) -> "Table":
        """Return a table of rows; columns that no row fills are left out, and nested ones are named by both names."""
        flat = [_flat(row) for row in rows]
        names = dict.fromkeys(name for row in flat for name, value in row.items() if value not in (None, ""))
        return cls(name=name, title=title, rows=tuple({each: row.get(each) for each in names} for row in flat))

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self.rows[0]) if self.rows else ()

    @property
    def shown(self) -> list[list[str]]:
        """The first rows as the page has them."""
        return [[cell_text(value) for value in row.values()] for row in self.rows[:MOST_SHOWN]]

    @property
    def left_out(self) -> int:
        """Rows that the page does not show."""
        return max(0, len(self.rows) - MOST_SHOWN)

    @property
    def file(self) -> "TableFile":
        """The table as CSV, in which texts that a spreadsheet would run begin with an apostrophe."""
        lines, size = [_csv_line(self.header)], 0
        for row in self.rows:
            line = _csv_line(row.values())
            size += len(line.encode())
            if size > MOST_BYTES:
                break
            lines.append(line)
        address = quote("".join(lines), safe=",.-_:/")
        return TableFile(f"data:text/csv;charset=utf-8,{address}", len(self.rows) - len(lines) + 1)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file within the page."""

    address: str
    """`data:` with the CSV."""
    left_out: int
    """Rows that had no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    tables: tuple[Table, ...] = ()
    conditions: str = ""
    """Pair, machine, rule, temperature and date of all its figures."""

    @property
    def where(self) -> str:
        """The conditions below every figure; the last part of the page has long names whole."""
        return shortened(self.conditions, 300)


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


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row with a column for each number and text; lists are counted, intervals have two columns.

    >>> _flat({"measured": {"step_s": 0.1, "speedup_interval": [1.0, 2.0]}, "divergences": [1]})
    {'measured step_s': 0.1, 'measured speedup low': 1.0, 'measured speedup high': 2.0, 'divergences': 1}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        column = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{column} ")
        elif isinstance(value, list) and name.endswith("interval") and len(value) == 2:
            start = column.removesuffix("interval").rstrip("_ ")
            flat |= {f"{start} low": value[0], f"{start} high": value[1]}
        else:
            flat[column] = len(value) if isinstance(value, list) else value
    return flat


def _csv_line(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["" if each is None else _safe(each) for each in values])
    return line.getvalue()


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULAS) else value
    return f"{value:.5g}" if isinstance(value, float) else value
