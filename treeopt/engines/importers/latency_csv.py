"""Curves as CSV: a line of names, then one sample a line."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.foreign_file import OPENING, ForeignFile
from treeopt.engines.importers.imported_latency import MOST_S, ImportedLatency, curve
from treeopt.engines.importers.importer import Measurements
from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.latency import Timing
from treeopt.records.step_latency import LATENCY_PARTS

UNITS = {"seconds": 1.0, "s": 1.0, "milliseconds": 1e-3, "ms": 1e-3, "microseconds": 1e-6, "us": 1e-6}
COLUMNS = {
    "tokens": "tokens",
    "context": "context",
    "context_tokens": "context",
    "batch": "batch",
    "batch_size": "batch",
    "pass": "pass",
    **dict.fromkeys(UNITS, "time"),
}
TAKEN = "tokens, one of seconds, ms and us, and if need be context, batch and pass"
MOST = 2**31 - 1
MAX_CONDITIONS = 1000
KIND = "CSV"
Row = dict[str, str]
"""What stands in the columns, by their meaning."""


@dataclass(slots=True)
class _Samples:
    """Seconds of one condition, curves by their count of tokens."""

    curves: dict[str, dict[int, list[float]]] = field(default_factory=lambda: {"verify": {}, "draft": {}})
    overhead: list[float] = field(default_factory=list)


def is_csv(file: ForeignFile) -> bool:
    """Return whether a text that is no JSON begins with a line of names, or of values with commas between."""
    lines = (line for line in file.lines if line.strip() and not line.lstrip().startswith("#"))
    first = next(lines, "").strip().lower()
    return ("," in first or first in COLUMNS) and not file.text.lstrip().startswith(OPENING)


def read_csv(file: ForeignFile) -> Measurements:
    """Return the times, one record per context and batch in the order of their first lines.

    Lines that start with # and empty ones say nothing.  Raises FormatError naming the line and the reason.
    """
    path = file.path
    conditions: dict[tuple[int | None, int], _Samples] = {}
    for line, row, scale in _rows(path, file.lines):
        what = row.get("pass", "").lower() or file.default_pass
        if what not in LATENCY_PARTS:
            raise FormatError(path, line, f"pass: expected {', '.join(LATENCY_PARTS)} or nothing. Got {what!r:.60}.")
        context = _whole(path, line, "context", row["context"], least=0) if row.get("context") else None
        batch = _whole(path, line, "batch", row["batch"]) if row.get("batch") else 1
        samples = conditions.setdefault((context, batch), _Samples())
        if len(conditions) > MAX_CONDITIONS:
            raise FormatError(path, line, f"expected at most {MAX_CONDITIONS} pairs of context and batch. Got more.")
        seconds = _seconds(path, line, row["time"], scale, may_be_0=what == "overhead")
        if what == "overhead":
            samples.overhead.append(seconds)
        else:
            samples.curves[what].setdefault(_whole(path, line, "tokens", row["tokens"]), []).append(seconds)
    if not conditions:
        raise FormatError(path, "content", "expected at least one line of numbers under the names. Got none.")
    latencies = tuple(_latency(path, *condition, samples) for condition, samples in conditions.items())
    return Measurements(latencies=latencies)


def _latency(path: Path | str, context: int | None, batch: int, samples: _Samples) -> ImportedLatency:
    verify, draft = samples.curves["verify"], samples.curves["draft"]
    try:
        return ImportedLatency(
            context_tokens=context,
            batch_size=batch,
            verify=curve(verify) if verify else None,
            draft=curve(draft) if draft else None,
            overhead=Timing(samples.overhead, allow_negative=True) if samples.overhead else None,
            source=source_text(path, KIND),
        )
    except InvalidValueError as error:
        raise FormatError(path, "tokens", str(error)) from None


def _rows(path: Path | str, lines: list[str]) -> Iterator[tuple[str, Row, float]]:
    """Yield for every line of numbers its name, what it holds, and what its times are multiplied by for seconds."""
    names: list[str] | None = None
    scale = 1.0
    for number, content in enumerate(lines, start=1):
        if not content.strip() or content.lstrip().startswith("#"):
            continue
        line = f"line {number}"
        cells = _cells(path, line, content)
        if names is None:
            names, scale = _header(path, line, cells)
        elif len(cells) != len(names):
            raise FormatError(path, line, f"expected {len(names)} values, one per name. Got {len(cells)}.")
        else:
            yield line, dict(zip(names, cells, strict=True)), scale


def _cells(path: Path | str, line: str, content: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([content.rstrip("\r")], strict=True))]
    except (csv.Error, StopIteration) as error:
        raise FormatError(path, line, f"expected values with commas between ({str(error) or 'none'}).") from None


def _header(path: Path | str, line: str, cells: list[str]) -> tuple[list[str], float]:
    written = [cell.lower() for cell in cells]
    if unknown := [cell for cell in written if cell not in COLUMNS]:
        raise FormatError(path, line, f"expected a line of names: {TAKEN}. Got {unknown[0]!r:.60}.")
    names = [COLUMNS[cell] for cell in written]
    if len(set(names)) != len(names) or not {"tokens", "time"} <= set(names):
        raise FormatError(path, line, f"expected each once: {TAKEN}. Got {', '.join(written)[:60]}.")
    return names, next(UNITS[cell] for cell in written if cell in UNITS)


def _whole(path: Path | str, line: str, name: str, text: str, *, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST)) and least <= int(text) <= MOST):
        raise FormatError(path, line, f"{name}: expected a whole number of at least {least}. Got {text!r:.60}.")
    return int(text)


def _seconds(path: Path | str, line: str, text: str, scale: float, *, may_be_0: bool) -> float:
    try:
        seconds = float(text) * scale if "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if not (0 < seconds <= MOST_S or (may_be_0 and seconds == 0)):
        least = "of at least 0" if may_be_0 else "above 0"
        raise FormatError(path, line, f"expected a time {least}, at most {MOST_S:g} seconds. Got {text!r:.60}.")
    return seconds
