"""Rows of CSV as pandas, numpy, R, spreadsheets and people write them: separators, decimal commas, index columns.

A file is separated by tabs, semicolons, commas or spaces, the first of these that its line of names contains. A decimal
comma is known by a number that can be nothing else (`10,5`), and assumed with semicolons. Lines without values and lines
that start with # are skipped; the names may stand in such a line.
"""

import csv
import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.errors import FormatError

SEPARATORS = ("\t", ";", ",", " ")
SPREADSHEET_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
"""A first line that tells a spreadsheet the separator."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([.,]\d{3})+")
"""Digits that may be a whole number with thousands separators, or one with three decimals."""
DECIMAL = re.compile(r"[+-]?\d*([.,])\d+(e[+-]?\d+)?", re.IGNORECASE)
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
"""Words of columns that number or date the samples."""
SETTINGS = frozenset(["gpu", "device", "model", "host", "machine", "engine", "backend", "kernel", "config", "version"])
"""Words of columns that name a setting, as `gpu_id` does."""
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
    decimal: str
    """The decimal mark of numbers that could have thousands separators: a point, a comma, or empty where both are used."""

    def whole(self, name: str, *, least: int = 1) -> int:
        """Return a whole number, which may be written as 8.0; raises FormatError for anything else."""
        text = self.cells[name]
        number = parse_number(text, self.decimal)
        if not (least <= number <= MOST) or number != int(number):
            raise self.error(f"{name}: expected a whole number of at least {least}. Got {text!r:.60}{_hint(text)}.")
        return int(number)

    def number(self, name: str) -> float:
        """Return a finite number; raises FormatError for anything else."""
        text = self.cells[name]
        number = parse_number(text, self.decimal)
        if not math.isfinite(number):
            hint = _hint(text) or ": replace it or remove the line"
            raise self.error(f"{name}: expected a number. Got {text!r:.60}{hint}.")
        return number

    def error(self, reason: str) -> FormatError:
        """Return the error of the line."""
        return self.file.error(self.line, reason)


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The lines of a file, and the names of its columns in their order."""

    line: str
    """Of the names."""
    names: list[str]
    rows: list[CsvRow]

    def check_constant(self, known: frozenset[str], key: Callable[[CsvRow], Hashable]) -> None:
        """Refuse a column of unknown meaning that looks like a setting with several values.

        Rows of several settings are no samples of one time. Columns that number samples or tell their spread may
        differ, and so may results: numbers that no two measured points share.

        Args:
            known: columns of known meaning.
            key: the measured point of a row.

        Raises FormatError naming the column.
        """
        keys = [key(row) for row in self.rows]
        for name in self.names:
            parts = set(words(name))
            if name in known or (parts & (REPEATS | SPREADS) and not parts & SETTINGS):
                continue
            texts = [row.cells[name] for row in self.rows]
            values = list(dict.fromkeys(texts))
            if len(values) > 1 and not self._are_results(name, keys):
                shown = ", ".join(map(repr, islice(values, 3)))
                raise self.rows[0].file.error(
                    self.line,
                    f"expected one value in the column {name!r:.40}. Got {shown[:80]}: keep the rows of one, or remove "
                    "the column.",
                )

    def _are_results(self, name: str, keys: list[Hashable]) -> bool:
        """Return whether a column has numbers that no two points share: fractions, or one for each point."""
        numbers = [parse_number(row.cells[name], row.decimal) for row in self.rows]
        pairs = set(zip(keys, numbers, strict=True))
        if not all(map(math.isfinite, numbers)) or len(pairs) > len(set(numbers)):
            return False
        return len(pairs) == len(set(keys)) or any(number != int(number) for number in numbers)


def words(name: str) -> list[str]:
    """Return the words of a column's name.

    >>> words("Latency [ms]"), words("n_tokens")
    (['latency', 'ms'], ['n', 'tokens'])
    """
    return [word for word in re.split(r"[^0-9a-zµμ]+", name.lower()) if word]


def parse_number(text: str, decimal: str) -> float:
    """Return a number with the decimal mark of its file; NaN for anything else, and where thousands are possible.

    >>> parse_number("10,5", ","), parse_number("1.234", "."), parse_number("1.234", ",")
    (10.5, 1.234, nan)
    """
    unclear = THOUSANDS.fullmatch(text) and (not decimal or decimal not in text)
    if unclear or "_" in text or ("," in text and "." in text):
        return math.nan
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


def header_names(file: ForeignFile) -> list[str]:
    """Return the names of the columns, in lower case; empty for files that are no CSV.

    With spaces between them, the next line must have as many values, as prose seldom has.
    """
    if file.is_json:
        return []
    try:
        _, names, separator, lines = _header(file)
        values = len(_cells(file, *lines[0], separator)) if separator == " " and lines else len(names)
    except FormatError:
        return []
    return names if values in (len(names), len(names) + 1) else []


def read_rows(file: ForeignFile) -> CsvRows:
    """Return all rows under a line of names; raises FormatError naming the line.

    A first column without a name, as pandas and R write one, is left out, and so are empty last ones, and the lines of
    names of files that were put together.
    """
    line, names, separator, lines = _header(file)
    written = ((number, _cells(file, number, text, separator)) for number, text in lines)
    cells_of_lines = [(number, cells) for number, cells in written if any(cells) and _lower(cells) != names]
    while names and not names[-1]:
        names.pop()
    for _, cells in cells_of_lines:
        while len(cells) > len(names) and not cells[-1]:
            cells.pop()
    quoted = all(text.lstrip().startswith('"') for _, text in lines)
    if quoted and lines and all(len(cells) == len(names) + 1 for _, cells in cells_of_lines):
        names = ["", *names]  # R's write.table leaves the name of its row names out
    for number, cells in cells_of_lines:
        if len(cells) != len(names):
            raise file.error(number, f"expected {len(names)} values, one per name. Got {len(cells)}.")
    if not cells_of_lines:
        raise file.error("content", "expected at least one line of numbers under the names. Got none.")
    decimal = _decimal_mark([cell for _, cells in cells_of_lines for cell in cells], separator)
    rows = [
        CsvRow(file, number, {name: cell for name, cell in zip(names, cells, strict=True) if name}, decimal)
        for number, cells in cells_of_lines
    ]
    named = [name for name in names if name]
    if twice := [name for name in named if named.count(name) > 1]:
        raise file.error(line, f"expected each column once. Got {twice[0]!r:.60} twice: rename one.")
    return CsvRows(line, named, rows)


def _header(file: ForeignFile) -> tuple[str, list[str], str, list[tuple[str, str]]]:
    """Return the line of the names, the names, the separator, and the numbered lines under it."""
    lines = [(f"line {number}", line) for number, line in enumerate(file.lines, start=1) if line.strip()]
    separator = ""
    if lines and (told := SPREADSHEET_SEPARATOR.fullmatch(lines[0][1].strip())):
        separator = told[1]
        lines.pop(0)
    first = next((place for place, (_, line) in enumerate(lines) if not _is_comment(line)), len(lines))
    content = [each for each in lines[first:] if not _is_comment(each[1])]
    if not content:
        raise file.error("content", "expected a line of names, and lines of numbers under it. Got none.")
    number, header = content[0]
    separator = separator or _separator(header)
    names = _cells(file, number, header, separator)
    if first and all(math.isfinite(parse_number(cell, ".")) for cell in names):
        above = _cells(file, lines[first - 1][0], lines[first - 1][1].lstrip(" \t#"), separator)
        if len(above) == len(names):  # numpy's savetxt comments the names out
            return lines[first - 1][0], _lower(above), separator, content
    return number, _lower(names), separator, content[1:]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _separator(header: str) -> str:
    return next((each for each in SEPARATORS if each in header.strip()), ",")


def _decimal_mark(cells: list[str], separator: str) -> str:
    """Return the mark that numbers without thousands separators show; with both of them, neither is certain."""
    marks = {found[1] for cell in cells if (found := DECIMAL.fullmatch(cell)) and not THOUSANDS.fullmatch(cell)}
    if len(marks) == 1:
        return marks.pop()
    if marks or (separator == "\t" and any("," in cell and THOUSANDS.fullmatch(cell) for cell in cells)):
        return ""
    has_comma = any("," in cell and THOUSANDS.fullmatch(cell) for cell in cells)
    return "," if separator == ";" and has_comma else "."


def _cells(file: ForeignFile, number: str, line: str, separator: str) -> list[str]:
    try:
        cells = next(csv.reader([line.strip("\r ")], strict=True, delimiter=separator, skipinitialspace=True))
    except (csv.Error, StopIteration) as error:
        raise file.error(number, f"expected values with {separator!r} between ({str(error) or 'none'}).") from None
    return [cell.strip() for cell in cells]


def _lower(cells: list[str]) -> list[str]:
    """Return names in lower case with _ between words; the name that pandas gives a nameless column is empty.

    >>> _lower(["stepTimeMs", "Unnamed: 0", "Tokens"])
    ['step_time_ms', '', 'tokens']
    """
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cell).lower() for cell in cells]
    return ["" if name.startswith("unnamed:") else name for name in names]


def _hint(text: str) -> str:
    if "," in text or THOUSANDS.fullmatch(text):
        return ": write it with a decimal point, and without thousands separators"
    return ""
