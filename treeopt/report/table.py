"""Tables of text: every column as wide as what stands in it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is laid out."""

    align: str = "<"
    """`<` for texts, `>` for numbers."""
    least: int = 0
    """Characters it has at least, so that tables one below the other line up."""
    gap: int = 2
    """Blanks before it."""


def aligned(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    r"""Return a line for each row, without blanks at its end.

    A row may end early: what stands last in it then runs on over the columns that it leaves out. A row of no cells is an
    empty line.

    >>> rows = [("", "nodes", "ms"), ("a tree", "8", "134.89"), (), ("b", "not timed yet")]
    >>> print(*aligned(rows, [Column(), Column(">", gap=3), Column(">")]), sep="\n")
             nodes      ms
    a tree       8  134.89
    <BLANKLINE>
    b        not timed yet
    """
    bound = [row if len(row) == len(columns) else row[:-1] for row in rows]  # what widths depend on
    widths = [
        max([column.least, *(len(row[place]) for row in bound if place < len(row))])
        for place, column in enumerate(columns)
    ]
    return [_line(row, columns, widths) for row in rows]


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for place, cell in enumerate(row):
        column = columns[place]
        runs_on = place == len(row) - 1 < len(columns) - 1
        parts.append(" " * column.gap if place else "")
        parts.append(cell if runs_on else f"{cell:{column.align}{widths[place]}}")
    return "".join(parts).rstrip()
