"""Rows of tables as pandas, numpy, R, spreadsheets and people write them: separators, decimal commas, index columns.

Objects of JSON are rows too. In text, the separator is a tab, semicolon, comma, bar or space, the first of these that the
header contains, or a bar if it begins with one, as in Markdown; a Markdown table may be part of a program's output. The
decimal mark is a comma if a number can be nothing else (`10,5`), and with semicolons. Empty lines, rules and lines that
start with # are skipped, but the header may be such a line.
"""

import ast
import csv
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.errors import FormatError

SEPARATORS = ("\t", ";", ",", "|", " ")
RULE = re.compile(r"[\s|:+=-]*[-=][\s|:+=-]*")
"""The line under the names of a Markdown table, and the frame of others."""
SPREADSHEET_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
"""A first line that tells a spreadsheet the separator."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([.,]\d{3})+")
"""A whole number with thousands separators, or one with three decimals."""
DECIMAL = re.compile(r"[+-]?\d*([.,])\d+(e[+-]?\d+)?", re.IGNORECASE)
MAX_WHOLE = 2**31 - 1
REPEATS = frozenset(
    [
        *("run", "rep", "repeat", "repetition", "iteration", "iter", "trial", "sample", "seed"),
        *("index", "idx", "id", "row", "timestamp", "date"),
    ]
)
"""Words of columns that number or date the samples."""
SETTINGS = frozenset(
    [
        *("gpu", "gpus", "device", "model", "host", "machine", "engine", "backend", "kernel", "config", "version"),
        *("algorithm", "method", "drafter", "dtype", "quant", "quantization", "dataset"),
    ]
)
"""Words of columns that name a setting, such as `gpu_id`."""
SPREADS = frozenset(
    [
        *(
            "std",
            "stdev",
            "stddev",
            "sd",
            "sigma",
            "ci95",
            "var",
            "variance",
            "sem",
            "se",
            "stderr",
            "iqr",
            "mad",
            "cv",
            "min",
            "max",
        ),
        *("p5", "p10", "p25", "p75", "p90", "p95", "p99", "ci", "low", "high", "lower", "upper"),
    ]
)
"""Words of columns that contain the spread of samples."""
RESULTS = frozenset(
    [
        *("total", "completed", "failed", "errors", "requests", "draft", "drafts", "accepted"),
        *("s", "ms", "us", "ns", "sec", "seconds", "duration", "latency", "throughput", "speed", "tok", "tps"),
    ]
)
"""Words of columns with results, whose numbers may differ between runs."""
NESTED_SETTINGS = {
    "speculative_config": ("method", "model", "num_speculative_tokens"),
    "server_info": (
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    ),
}
"""Drafting settings below a field of a result, such as vLLM's and SGLang's benchmarks write."""
MAX_NESTED = 4000
"""Characters of a nested cell."""
MAX_ROWS = 100_000
HEADER_LINES = 1000
"""Lines among which the header is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of values by column name in lower case; an object of JSON by its keys."""

    file: ForeignFile
    line: str
    cells: dict[str, str]
    decimal: str
    """Decimal mark of numbers that may have thousands separators: a point, a comma, or empty if the file has both."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Columns as the file names them, by other names that `cells` has."""

    def whole(self, name: str, *, least: int = 1) -> int:
        """Return a whole number, also if written as 8.0; raises FormatError for anything else."""
        text = self.cells[name]
        number = parse_number(text, self.decimal)
        if not (least <= number <= MAX_WHOLE) or number != int(number):
            raise self.error(f"{name}: expected a whole number of at least {least}. Got {text!r:.60}{_hint(text)}.")
        return int(number)

    def number(self, name: str) -> float:
        """Return a finite number; raises FormatError for anything else."""
        text = self.cells[name]
        number = parse_number(text, self.decimal)
        if not math.isfinite(number):
            hint = _hint(text) or ": replace it or remove the line"
            raise self.error(f"{self.titles.get(name, name)}: expected a number. Got {text!r:.60}{hint}.")
        return number

    def error(self, reason: str) -> FormatError:
        return self.file.error(self.line, reason)


@dataclass(frozen=True, slots=True)
class Rows:
    """All lines of values of a file."""

    header_line: str
    names: list[str]
    rows: list[Row]

    def check_constant(self, known_columns: frozenset[str], points: Sequence[Hashable]) -> None:
        """Refuse an unknown column that looks like a setting with several values.

        Rows of several settings are not samples of one time. Columns that number samples or contain their spread may
        differ, and so may results: a number for each measured point, or fractions that no two points share.

        Args:
            known_columns: names of columns that are not checked.
            points: the measured point of every row.

        Raises FormatError naming the column.
        """
        decimal = self.rows[0].decimal
        for name in self.names:
            words = set(split_words(name))
            if name in known_columns or (words & (REPEATS | SPREADS) and not words & SETTINGS):
                continue
            cells = [(point, row.cells[name]) for point, row in zip(points, self.rows, strict=True) if row.cells[name]]
            values = list(dict.fromkeys(cell for _, cell in cells))
            are_numbers = all(math.isfinite(parse_number(value, decimal)) for value in values)
            if words & RESULTS and not words & SETTINGS and are_numbers:
                continue
            if len(values) > 1 and (words & SETTINGS or not _are_results(cells, decimal)):
                examples = ", ".join(map(repr, islice(values, 3)))
                raise self.rows[0].file.error(
                    self.header_line,
                    f"expected one value in the column {name!r:.40}. Got {examples[:80]}: keep the rows of one, or remove "
                    "the column.",
                )


def _are_results(cells: Sequence[tuple[Hashable, str]], decimal: str) -> bool:
    """Return whether cells, each with its point, do not mix settings.

    Numbers have one value at each point, or are fractions that no two points share; a text names one point.
    """
    points = {point for point, _ in cells}
    numbers = [parse_number(cell, decimal) for _, cell in cells]
    if not all(map(math.isfinite, numbers)):
        return len(set(cells)) == len(points) == len({cell for _, cell in cells})
    pairs = set(zip((point for point, _ in cells), numbers, strict=True))
    if len(pairs) == len(points):
        return True
    return len(pairs) == len(set(numbers)) and any(number != int(number) for number in numbers)


def split_words(name: str) -> list[str]:
    """Return the words of a column's name.

    >>> split_words("Latency [ms]"), split_words("n_tokens")
    (['latency', 'ms'], ['n', 'tokens'])
    """
    return [word for word in re.split(r"[^0-9a-zµμ]+", name.lower()) if word]


def join_words(name: str) -> str:
    """Return the words of a column's name with _ between them; names in other alphabets stay as they are.

    >>> join_words("Throughput (tok/s)"), join_words("模型")
    ('throughput_tok_s', '模型')
    """
    return "_".join(split_words(name)) or name


def parse_number(text: str, decimal: str) -> float:
    """Return a number with the decimal mark of its file; NaN for anything else, and if thousands are possible.

    >>> parse_number("10,5", ","), parse_number("1.234", "."), parse_number("1.234", ",")
    (10.5, 1.234, nan)
    """
    ambiguous = THOUSANDS.fullmatch(text) and (not decimal or decimal not in text)
    if ambiguous or "_" in text or ("," in text and "." in text):
        return math.nan
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


def read_header(file: ForeignFile) -> list[str]:
    """Return the column names in lower case; empty for files that are no table.

    If spaces separate them, the next line must have as many values, which prose seldom has. Of JSON they are the keys with
    numbers or texts.
    """
    if file.is_json:
        cells = (name for row in file.objects for name in flatten_settings(row.content))
        return _normalize_names(list(dict.fromkeys(cells)))
    try:
        header = _find_header(file, HEADER_LINES)
        first_values = len(header.names)
        if header.separator == " " and header.lines:
            first_values = len(_split_cells(file, *header.lines[0], header.separator))
    except FormatError:
        return []
    return header.names if first_values in (len(header.names), len(header.names) + 1) else []


def read_rows(file: ForeignFile) -> Rows:
    """Return all rows; raises FormatError naming the line.

    Leaves out a first column without a name, which pandas and R write, empty last columns, and repeated headers of
    concatenated files. Of JSON, null is an empty cell. Lists and objects are left out, in text too, except drafting
    settings.
    """
    if (count := len(file.objects if file.is_json else file.lines)) > MAX_ROWS:
        raise file.error("content", f"expected a table of at most {MAX_ROWS} lines. Got {count}: keep fewer samples.")
    if file.is_json:
        return _read_objects(file)
    header = _find_header(file, MAX_ROWS)
    names, separator = header.names, header.separator
    numbered = [(number, _split_cells(file, number, line, separator)) for number, line in header.lines]
    numbered = [(number, cells) for number, cells in numbered if any(cells) and _normalize_names(cells) != names]
    while names and not names[-1]:
        names.pop()
    for _, cells in numbered:
        while len(cells) > len(names) and not cells[-1]:
            cells.pop()
    quoted = all(line.lstrip().startswith('"') for _, line in header.lines)
    if quoted and header.lines and all(len(cells) == len(names) + 1 for _, cells in numbered):
        names = ["", *names]  # R's write.table writes no name for its row names
    for number, cells in numbered:
        if len(cells) != len(names):
            raise file.error(number, f"expected {len(names)} values, one per name. Got {len(cells)}.")
    if not numbered:
        raise file.error("content", "expected at least one line of numbers under the names. Got none.")
    decimal = _find_decimal_mark([cell for _, cells in numbered for cell in cells], separator)
    if repeated := [name for name in names if name and names.count(name) > 1]:
        raise file.error(header.number, f"expected each column once. Got {repeated[0]!r:.60} twice: rename one.")
    contents = [
        flatten_settings({name: _parse_nested(cell) for name, cell in zip(names, cells, strict=True) if name})
        for _, cells in numbered
    ]
    names = list(dict.fromkeys(name for content in contents for name in content))
    rows = [
        Row(file, number, {name: _cell_text(content.get(name)) for name in names}, decimal)
        for (number, _), content in zip(numbered, contents, strict=True)
    ]
    return Rows(header.number, names, rows)


def flatten_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without lists and objects, together with drafting settings that are nested.

    >>> flatten_settings({"tpot": 8, "itls": [8, 9], "speculative_config": {"num_speculative_tokens": 4}})
    {'tpot': 8, 'speculative_config.num_speculative_tokens': 4}
    """
    flat = {name: value for name, value in content.items() if not _is_nested(value)}
    for name, settings in NESTED_SETTINGS.items():
        nested = content.get(name)
        if isinstance(nested, dict):
            prefix = "" if name == "server_info" else f"{name}."
            flat |= {f"{prefix}{key}": nested[key] for key in settings if key in nested and not _is_nested(nested[key])}
    return flat


def _parse_nested(cell: str) -> Any:
    """Return the list or object in a cell, as pandas writes it; other cells stay as they are."""
    if cell[:1] + cell[-1:] not in ("[]", "{}"):
        return cell
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(cell) if len(cell) <= MAX_NESTED else []
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return cell


def _read_objects(file: ForeignFile) -> Rows:
    rows = []
    for result in file.objects:
        cells = flatten_settings(result.content)
        texts = map(_cell_text, cells.values())
        rows.append((result.place or "content", dict(zip(_normalize_names(list(cells)), texts, strict=True))))
    empty = dict.fromkeys(read_header(file), "")
    return Rows("content", list(empty), [Row(file, place, empty | cells, ".") for place, cells in rows])


def _cell_text(value: object) -> str:
    return "" if value is None else str(value)


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict)


@dataclass(frozen=True, slots=True)
class _Header:
    number: str
    names: list[str]
    separator: str
    lines: list[tuple[str, str]]
    """The numbered lines below."""


def _find_header(file: ForeignFile, max_lines: int) -> _Header:
    """Return the header and the lines below it, of the first `max_lines` lines."""
    numbered = enumerate(islice(file.lines, max_lines), start=1)
    lines = [(f"line {number}", line) for number, line in numbered if line.strip()]
    markdown = [(number, line) for number, line in lines if line.lstrip().startswith("|")]
    lines = markdown if len(markdown) > 1 else lines
    separator = ""
    if lines and (match := SPREADSHEET_SEPARATOR.fullmatch(lines[0][1].strip())):
        separator = match[1]
        lines.pop(0)
    start = next((index for index, (_, line) in enumerate(lines) if not _is_comment(line)), len(lines))
    content = [(number, line) for number, line in lines[start:] if not _is_comment(line)]
    if not content:
        raise file.error("content", "expected a line of names, and lines of numbers under it. Got none.")
    number, header = content[0]
    separator = separator or _find_separator(header)
    cells = _split_cells(file, number, header, separator)
    if start and all(math.isfinite(parse_number(cell, ".")) for cell in cells):
        comment_number, comment = lines[start - 1]
        names = _split_cells(file, comment_number, comment.lstrip(" \t#"), separator)
        if len(names) == len(cells):  # numpy's savetxt writes the header as a comment
            return _Header(comment_number, _normalize_names(names), separator, content)
    return _Header(number, _normalize_names(cells), separator, content[1:])


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#") or RULE.fullmatch(line) is not None


def _find_separator(header: str) -> str:
    if header.lstrip().startswith("|"):
        return "|"
    return next((separator for separator in SEPARATORS if separator in header.strip()), ",")


def _find_decimal_mark(cells: list[str], separator: str) -> str:
    """Return the mark of numbers without thousands separators; empty if both marks occur."""
    matches = (DECIMAL.fullmatch(cell) for cell in cells if not THOUSANDS.fullmatch(cell))
    marks = {match[1] for match in matches if match}
    if len(marks) == 1:
        return marks.pop()
    has_comma = any("," in cell and THOUSANDS.fullmatch(cell) for cell in cells)
    if marks or (separator == "\t" and has_comma):
        return ""
    return "," if separator == ";" and has_comma else "."


def _split_cells(file: ForeignFile, number: str, line: str, separator: str) -> list[str]:
    try:
        content = line.strip("\r ")
        if separator == "|":
            content = content.removeprefix("|").removesuffix("|")
        cells = next(csv.reader([content], strict=True, delimiter=separator, skipinitialspace=True))
    except (csv.Error, StopIteration) as error:
        raise file.error(number, f"expected values separated by {separator!r} ({str(error) or 'none'}).") from None
    return [cell.strip() for cell in cells]


def _normalize_names(cells: list[str]) -> list[str]:
    """Return names in lower case with _ between words; pandas' name of a nameless column becomes empty.

    >>> _normalize_names(["stepTimeMs", "Unnamed: 0", "Tokens"])
    ['step_time_ms', '', 'tokens']
    """
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cell).lower() for cell in cells]
    return ["" if name.startswith("unnamed:") else name for name in names]


def _hint(text: str) -> str:
    if "," in text or THOUSANDS.fullmatch(text):
        return ": write it with a decimal point, and without thousands separators"
    return ""
