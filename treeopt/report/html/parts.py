"""Parts of the page: sections of figures and tables, each table also as a CSV file within the page."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from treeopt.plotting.panels import Panel, compose
from treeopt.plotting.svg import svg_text
from treeopt.tabular import cell_text

MAX_LETTERS = 80
"""Letters of a name in a heading; tables contain the whole name."""
MAX_ROWS = 100
"""Rows of a table on the page; the CSV file contains more."""
MAX_CSV_BYTES = 60_000
"""Keeps the page small; rows that do not fit are left out and counted."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs text that starts with one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigure:
    """A figure with its title and caption."""

    name: str
    """Id of the element, unique on the page: letters, digits and dashes."""
    title: str
    caption: str
    svg: str
    conditions: str = ""
    """Pair, machine and date if they differ from those of its section."""
    zoomed: bool = False
    """Whether it is shown in a frame that scrolls and zooms."""

    @classmethod
    def of(cls, name: str, panel: Panel, caption: str, *, label: str = "", conditions: str = "") -> "PageFigure":
        """Return a figure of one panel; the label is appended to its title."""
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
    """Id of the element and name of the file: letters, digits and dashes."""
    title: str
    rows: tuple[Mapping[str, Any], ...]
    """All with the same keys."""

    @classmethod
    def of(cls, name: str, title: str, rows: Iterable[Mapping[str, Any]]) -> "Table":
        """Return a table of rows; empty columns are left out, and nested columns are named by both keys."""
        flat = [_flat(row) for row in rows]
        names = dict.fromkeys(name for row in flat for name, value in row.items() if value not in (None, ""))
        return cls(name=name, title=title, rows=tuple({name: row.get(name) for name in names} for row in flat))

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self.rows[0]) if self.rows else ()

    @property
    def cells(self) -> list[list[str]]:
        """Cells of the rows that the page shows."""
        return [[cell_text(value) for value in row.values()] for row in self.rows[:MAX_ROWS]]

    @property
    def left_out(self) -> int:
        """Number of rows that the page does not show."""
        return max(0, len(self.rows) - MAX_ROWS)

    @property
    def file(self) -> tuple[str, int]:
        """The table as CSV in a `data:` URL, and the number of rows that did not fit.

        Text that a spreadsheet would run is preceded by an apostrophe.
        """
        lines, size = [_csv_line(self.header)], 0
        for row in self.rows:
            line = _csv_line(row.values())
            size += len(line.encode())
            if size > MAX_CSV_BYTES:
                break
            lines.append(line)
        address = quote("".join(lines), safe=",.-_:/")
        return f"data:text/csv;charset=utf-8,{address}", len(self.rows) - len(lines) + 1


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
    def short_conditions(self) -> str:
        """The conditions as printed below every figure; the end of the page contains long names whole."""
        return shortened(self.conditions, 300)


def shortened(text: str, most: int = MAX_LETTERS) -> str:
    """Return text of at most `most` letters, wide ones counted twice; a longer text ends in an ellipsis.

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
    """Return a row with one level of keys: a list becomes its length, an interval two columns.

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
    csv.writer(line, lineterminator="\n").writerow(["" if value is None else _csv_cell(value) for value in values])
    return line.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return f"{value:.5g}" if isinstance(value, float) else value
