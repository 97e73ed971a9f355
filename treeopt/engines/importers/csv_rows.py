"""Rows of CSV as pandas, R, spreadsheets and people write them: separators, decimal commas, index columns.

A file is separated by tabs, semicolons or commas, the first of these that its line of names contains. With tabs and
semicolons a comma in a number is a decimal comma. Empty lines and lines that start with # are skipped.
"""

import csv
import math
import re
from dataclasses import dataclass
from itertools import islice

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.errors import FormatError

SEPARATORS = ("\t", ";", ",")
MOST = 2**31 - 1
REPEATS = frozenset(
    [
        "run",
        "rep",
        "repeat",
        "repetition",
        "iteration",
        "iter",
        "trial",
        "sample",
        "seed",
        "index",
        "idx",
        "id",
        "row",
        "timestamp",
        "date",
    ]
)
"""Columns that number or date the samples."""
SPREADS = frozenset(
    [
        "std",
        "stddev",
        "sd",
        "var",
        "variance",
        "sem",
        "cv",
        "min",
        "max",
        "p5",
        "p10",
        "p25",
        "p75",
        "p90",
        "p95",
        "p99",
        "ci",
        "low",
        "high",
        "lower",
        "upper",
    ]
)
"""Words of columns that tell how samples spread."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of values, by the names of their columns in lower case."""

    file: ForeignFile
    line: str
    cells: dict[str, str]
    decimal_comma: bool

    def whole(self, name: str, *, least: int = 1) -> int:
        """Return a whole number, which may be written as 8.0; raises FormatError for anything else."""
        text = self.cells[name]
        number = self._parse(text)
        if not (least <= number <= MOST) or number != int(number):
            raise self.error(f"{name}: expected a whole number of at least {least}. Got {text!r:.60}.")
        return int(number)

    def number(self, name: str) -> float:
        """Return a finite number; raises FormatError for anything else."""
        number = self._parse(self.cells[name])
        if not math.isfinite(number):
            raise self.error(f"{name}: expected a number. Got {self.cells[name]!r:.60}: replace or remove the line.")
        return number

    def error(self, reason: str) -> FormatError:
        """Return the error of the line."""
        return self.file.error(self.line, reason)

    def _parse(self, text: str) -> float:
        if self.decimal_comma and "," in text and "." not in text:
            text = text.replace(",", ".")
        try:
            return float(text) if "_" not in text else math.nan
        except ValueError:
            return math.nan


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The lines of a file, and the names of its columns in their order."""

    line: str
    """Of the names."""
    names: list[str]
    rows: list[CsvRow]

    def check_constant(self, known: frozenset[str]) -> None:
        """Refuse a column of unknown meaning whose values differ: rows of several settings are no samples of one.

        Columns that number samples or tell their spread may differ.
        Raises FormatError naming the column.
        """
        for name in self.names:
            if name in known or set(words(name)) & (REPEATS | SPREADS):
                continue
            values = list(dict.fromkeys(row.cells[name] for row in self.rows))
            if len(values) > 1:
                shown = ", ".join(map(repr, islice(values, 3)))
                raise self.rows[0].file.error(
                    self.line,
                    f"expected one value in the column {name!r:.40}. Got {shown[:80]}: keep the rows of one, or remove it.",
                )


def words(name: str) -> list[str]:
    """Return the words of a column's name.

    >>> words("Latency [ms]"), words("n_tokens")
    (['latency', 'ms'], ['n', 'tokens'])
    """
    return [word for word in re.split(r"[^0-9a-zµμ]+", name.lower()) if word]


def header_names(file: ForeignFile) -> list[str]:
    """Return the names of the first line, in lower case; empty for files that are no CSV."""
    lines = _lines(file)
    if file.is_json or not lines:
        return []
    try:
        return _names(_cells(file, *lines[0], _separator(lines[0][1])))
    except FormatError:
        return []


def read_rows(file: ForeignFile) -> CsvRows:
    """Return all rows under a line of names; raises FormatError naming the line.

    A first column without a name, as pandas and R write one, is left out, and so are empty last ones.
    """
    lines = _lines(file)
    if not lines:
        raise file.error("content", "expected a line of names, and lines of numbers under it. Got an empty file.")
    separator = _separator(lines[0][1])
    names = _names(_cells(file, *lines[0], separator))
    cells_of_lines = [(number, _cells(file, number, line, separator)) for number, line in lines[1:]]
    if len(cells_of_lines) > 1 and all(len(cells) == len(names) + 1 for _, cells in cells_of_lines):
        names = ["", *names]  # R's write.table leaves the name of its row names out
    rows = []
    for number, cells in cells_of_lines:
        if len(cells) != len(names):
            raise file.error(number, f"expected {len(names)} values, one per name. Got {len(cells)}.")
        by_name = {name: cell for name, cell in zip(names, cells, strict=True) if name}
        rows.append(CsvRow(file, number, by_name, separator != ","))
    if not rows:
        raise file.error("content", "expected at least one line of numbers under the names. Got none.")
    named = [name for name in names if name]
    if twice := [name for name in named if named.count(name) > 1]:
        raise file.error(lines[0][0], f"expected each column once. Got {twice[0]!r:.60} twice: rename one.")
    return CsvRows(lines[0][0], named, rows)


def _lines(file: ForeignFile) -> list[tuple[str, str]]:
    numbered = enumerate(file.lines, start=1)
    return [(f"line {number}", line) for number, line in numbered if line.strip() and not line.lstrip().startswith("#")]


def _separator(header: str) -> str:
    return next((each for each in SEPARATORS if each in header), ",")


def _cells(file: ForeignFile, number: str, line: str, separator: str) -> list[str]:
    try:
        cells = next(csv.reader([line.rstrip("\r")], strict=True, delimiter=separator))
    except (csv.Error, StopIteration) as error:
        raise file.error(number, f"expected values with {separator!r} between ({str(error) or 'none'}).") from None
    return [cell.strip() for cell in cells]


def _names(cells: list[str]) -> list[str]:
    names = [cell.lower() for cell in cells]
    return ["" if name.startswith("unnamed:") else name for name in names]
