"""Tables of the page, each shown and offered as a file that lies in the page itself."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

MOST_SHOWN = 200
"""Rows of a table on the page; the file has more."""
MOST_BYTES = 150_000
"""Of one table's file, so that no profile makes the page too large; rows that do not fit are counted."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a text that it opens."""
Value = str | float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a header."""

    name: str
    """Of the element and the file: letters and dashes."""
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The first rows as the page has them."""
        return tuple(tuple(_shown(value) for value in row) for row in self.rows[:MOST_SHOWN])

    @property
    def left_out(self) -> int:
        """Rows that the page does not show."""
        return max(0, len(self.rows) - MOST_SHOWN)

    @property
    def file(self) -> "TableFile":
        """The table as CSV."""
        return table_file(self.header, self.rows)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file within the page."""

    address: str
    """`data:` with the CSV."""
    left_out: int
    """Rows that had no room."""


def table_file(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> TableFile:
    """Return CSV as an address; texts that a spreadsheet would run as a formula begin with an apostrophe.

    >>> table_file(["a"], [["=1+1"], [2.5], [None]]).address
    'data:text/csv;charset=utf-8,a%0D%0A%27%3D1%2B1%0D%0A2.5%0D%0A%22%22%0D%0A'
    """
    text, size, kept = io.StringIO(), 0, 0
    writer = csv.writer(text)
    writer.writerow(header)
    for row in rows:
        line = io.StringIO()
        csv.writer(line).writerow([_written(value) for value in row])
        size += len(line.getvalue().encode())
        if size > MOST_BYTES:
            break
        text.write(line.getvalue())
        kept += 1
    return TableFile(
        f"data:text/csv;charset=utf-8,{quote(text.getvalue(), safe=' ,.-_:/')}".replace(" ", "%20"), len(rows) - kept
    )


def _written(value: Value) -> Value:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULAS) else value
    return f"{value:.6g}" if isinstance(value, float) else value


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
