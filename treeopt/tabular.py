"""Records as tables: rows for pandas, and escaped HTML for notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
"""One row of a table: numbers, strings, booleans and None by column."""
MAX_ROWS = 24
"""First rows of a table, which a notebook shows; `to_records()` returns all."""
MAX_TEXT = 120
"""Characters of a string in a notebook; the middle of a longer one is left out."""


class Tabular:
    """A record with rows: notebooks show them, and `pandas.DataFrame(record.to_records())` is a data frame."""

    __slots__ = ()

    def to_records(self) -> list[Row]:
        """Return a dict for every row; all have the same keys in the same order."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return heading_html(repr(self)) + table_html(self._shown_rows())

    def _shown_rows(self) -> list[Row]:
        """Return the rows that a notebook shows."""
        return self.to_records()


def heading_html(text: str) -> str:
    """Return the paragraph above a table."""
    return f"<p>{text_html(text)}</p>"


def table_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table of the first rows, in the notebook's colours; empty without rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "".join(f"<tr>{_cells(row.values())}</tr>" for row in rows[:MAX_ROWS])
    left_out = len(rows) - MAX_ROWS
    more = f"<p>{left_out} more in to_records()</p>" if left_out > 0 else ""
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def heat_html(corner: str, columns: Iterable[object], rows: Mapping[str, Sequence[float]]) -> str:
    """Return an HTML table of probabilities as a heat map.

    Args:
        corner: text of the corner cell.
        columns: names of the columns.
        rows: a probability for each column, by the name of the row.
    """
    names = "".join(f'<th scope="col">{text_html(str(name))}</th>' for name in columns)
    lines = (
        f'<tr><th scope="row">{text_html(name)}</th>{"".join(map(_heat, values))}</tr>' for name, values in rows.items()
    )
    return (
        f'<table class="dataframe"><thead><tr><th>{text_html(corner)}</th>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def text_html(text: str) -> str:
    """Return escaped text, isolated from the direction of the text around it."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in _short(text))
    return f"<bdi>{escape(plain)}</bdi>"


def cell_text(value: object) -> str:
    """Return the text of a cell: four digits of a number, nothing for None.

    >>> cell_text(0.123456), cell_text(8), cell_text(None), cell_text(True)
    ('0.1235', '8', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cells(values: Iterable[object]) -> str:
    return "".join(
        f"<td>{text_html(value)}</td>" if isinstance(value, str) else f"<td>{escape(cell_text(value))}</td>"
        for value in values
    )


def _heat(value: float) -> str:
    return f'<td style="background:rgba(0,114,178,{0.75 * value:.2f})">{value:.3f}</td>'


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}…{text[1 - MAX_TEXT // 2 :]}"
