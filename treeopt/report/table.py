"""Aligned text tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.report.text import spread

if TYPE_CHECKING:
    from treeopt.planner import Prediction


@dataclass(frozen=True, slots=True)
class Column:
    """Layout of one column."""

    align: str = "<"
    """`<` for text, `>` for numbers."""
    least: int = 0
    """Minimum width in characters, so that tables one below the other line up."""
    gap: int = 2
    """Blanks before it."""


PREDICTED = ("tokens/step", "step, ms", "speedup")
PREDICTED_COLUMNS = (Column(least=18, gap=3), Column(least=20), Column())
"""Header and layout of `predicted_cells`."""


def predicted_cells(prediction: "Prediction") -> tuple[str, str, str]:
    """Return the cells of a prediction, each number with its interval."""
    return spread(prediction.tokens_per_step), spread(prediction.step_s, 1000), spread(prediction.speedup)


def aligned(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    r"""Return a line for each row, without trailing blanks.

    If a row has fewer cells than there are columns, its last cell extends over the missing ones. A row without cells is an
    empty line.

    >>> rows = [("", "nodes", "ms"), ("a tree", "8", "134.89"), (), ("b", "not timed yet")]
    >>> print(*aligned(rows, [Column(), Column(">", gap=3), Column(">")]), sep="\n")
             nodes      ms
    a tree       8  134.89
    <BLANKLINE>
    b        not timed yet
    """
    cells = [row if len(row) == len(columns) else row[:-1] for row in rows]  # an extending cell has no effect on widths
    widths = [
        max([column.least, *(len(row[index]) for row in cells if index < len(row))])
        for index, column in enumerate(columns)
    ]
    return [_line(row, columns, widths) for row in rows]


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for index, cell in enumerate(row):
        column = columns[index]
        extends = index == len(row) - 1 < len(columns) - 1
        parts.append(" " * column.gap if index else "")
        parts.append(cell if extends else f"{cell:{column.align}{widths[index]}}")
    return "".join(parts).rstrip()
