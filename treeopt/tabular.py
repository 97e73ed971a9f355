"""Records as tables: rows for pandas and the like, and HTML for notebooks, in which names are only ever text."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
"""One line of a table: numbers, texts, booleans and None by column."""
MOST_ROWS = 24
"""Rows of a table that a notebook shows, the first ones; all of them are in `to_records()`."""
MOST_TEXT = 120
"""Characters of a text that a notebook shows; the middle of a longer one is left out."""


class Tabular:
    """A record that is a table: `to_records()` gives its rows, and notebooks show them.

    `pandas.DataFrame(record.to_records())` makes a data frame of it.
    """

    __slots__ = ()

    def to_records(self) -> list[Row]:
        """Return a dict for every row, all with the same keys in the same order."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return heading_html(repr(self)) + table_html(self._shown_rows())

    def _shown_rows(self) -> list[Row]:
        """Return the rows that are worth a look."""
        return self.to_records()


def heading_html(text: str) -> str:
    """Return a line above a table."""
    return f"<p>{text_html(text)}</p>"


def table_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table of the first rows, in the colours that the notebook has; empty for no rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "".join(f"<tr>{_cells(row.values())}</tr>" for row in rows[:MOST_ROWS])
    left_out = len(rows) - MOST_ROWS
    more = f"<p>{left_out} more in to_records()</p>" if left_out > 0 else ""
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def heat_html(corner: str, columns: Iterable[object], rows: Mapping[str, Sequence[float]]) -> str:
    """Return an HTML table of probabilities, each on a ground that is the stronger the larger it is.

    Args:
        corner: what columns and rows are.
        columns: their names.
        rows: a number for each column, by the names of rows.
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
    """Return a text as HTML that does nothing but show it, whatever it holds and in whichever direction it is written."""
    plain = "".join(each if each.isprintable() else "\ufffd" for each in _short(text))
    return f"<bdi>{escape(plain)}</bdi>"


def cell_text(value: object) -> str:
    """Return what stands in a cell: four digits of a number, nothing for None.

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
        f"<td>{text_html(each)}</td>" if isinstance(each, str) else f"<td>{escape(cell_text(each))}</td>"
        for each in values
    )


def _heat(value: float) -> str:
    return f'<td style="background:rgba(0,114,178,{0.75 * value:.2f})">{value:.3f}</td>'


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT // 2]}…{text[1 - MOST_TEXT // 2 :]}"
