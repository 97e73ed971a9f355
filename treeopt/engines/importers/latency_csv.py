"""Curves as CSV: a line of names, then one sample a line."""

from dataclasses import dataclass, field

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.csv_rows import SPREADS, CsvRow, CsvRows, header_names, read_rows, words
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_latency import MOST_S, ImportedLatency, curve
from treeopt.engines.importers.importer import Measurements
from treeopt.errors import InvalidValueError
from treeopt.records.latency import Timing
from treeopt.records.step_latency import LATENCY_PARTS

UNITS = {
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("milliseconds", "millis", "msec", "ms"), 1e-3),
    **dict.fromkeys(("microseconds", "usec", "us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("nanoseconds", "nsec", "ns"), 1e-9),
}
COLUMNS = {
    "tokens": ("tokens", "n_tokens", "num_tokens", "batch_tokens", "token_count", "nodes", "query_len", "q_len", "n"),
    "context": (
        "context",
        "context_tokens",
        "context_len",
        "context_length",
        "ctx",
        "n_ctx",
        "seq_len",
        "kv_len",
        "n_depth",
    ),
    "batch": ("batch", "batch_size", "bs"),
    "pass": ("pass",),
}
SPEEDS = frozenset(("per", "tok", "token", "tokens", "tps", "throughput", "speed"))
"""Words of a column of speeds, which ends in a unit too."""
TAKEN = "tokens, a time such as ms or latency_us, and if need be context, batch and pass"
MAX_CONDITIONS = 1000
KIND = "CSV"


@dataclass(slots=True)
class _Samples:
    """Seconds of one condition, curves by their count of tokens."""

    curves: dict[str, dict[int, list[float]]] = field(default_factory=lambda: {"verify": {}, "draft": {}})
    overhead: list[float] = field(default_factory=list)


def is_csv(file: ForeignFile) -> bool:
    """Return whether a text that is no JSON begins with a line of names, or of several values."""
    names = header_names(file)
    return len(names) > 1 or any(name in COLUMNS["tokens"] or _unit(name) for name in names)


def read_csv(file: ForeignFile) -> Measurements:
    """Return the times, one record per context and batch in the order of their first lines.

    Raises FormatError naming the line and the reason.
    """
    table = read_rows(file)
    columns = _columns(file, table)
    time = columns["time"]
    scale = UNITS[words(time)[-1]]
    speeds = [name for name in table.names if SPEEDS & set(words(name))]
    table.check_constant(frozenset([*columns.values(), *speeds]))
    conditions: dict[tuple[int | None, int], _Samples] = {}
    for row in table.rows:
        what = _cell(row, columns, "pass").lower() or file.default_pass
        if what not in LATENCY_PARTS:
            raise row.error(f"pass: expected {', '.join(LATENCY_PARTS)} or nothing. Got {what!r:.60}.")
        context = row.whole(columns["context"], least=0) if _cell(row, columns, "context") else None
        batch = row.whole(columns["batch"]) if _cell(row, columns, "batch") else 1
        samples = conditions.setdefault((context, batch), _Samples())
        if len(conditions) > MAX_CONDITIONS:
            raise row.error(f"expected at most {MAX_CONDITIONS} pairs of context and batch. Got more.")
        seconds = _seconds(row, time, scale, what=what)
        if what == "overhead":
            samples.overhead.append(seconds)
        else:
            samples.curves[what].setdefault(row.whole(columns["tokens"]), []).append(seconds)
    return Measurements(
        latencies=tuple(_latency(file, *condition, samples) for condition, samples in conditions.items())
    )


def _columns(file: ForeignFile, table: CsvRows) -> dict[str, str]:
    """Return the names of the columns by their meaning; raises FormatError where one is missing or there are several."""
    columns = {}
    for meaning, names in COLUMNS.items():
        present = [name for name in table.names if name in names]
        if len(present) > 1:
            raise file.error(table.line, f"expected one column of {meaning}. Got {', '.join(present)}: remove one.")
        if present:
            columns[meaning] = present[0]
    times = [name for name in table.names if _unit(name)]
    if "tokens" not in columns or not times:
        raise file.error(table.line, f"expected a line of names: {TAKEN}. Got {', '.join(table.names)!r:.80}.")
    if len(times) > 1:
        raise file.error(table.line, f"expected one column of times. Got {', '.join(times)[:80]}: remove the others.")
    return columns | {"time": times[0]}


def _unit(name: str) -> bool:
    """Return whether a column holds times, and not speeds or how times spread."""
    parts = words(name)
    return bool(parts) and parts[-1] in UNITS and not (SPEEDS | SPREADS) & set(parts[:-1])


def _cell(row: CsvRow, columns: dict[str, str], meaning: str) -> str:
    return row.cells[columns[meaning]] if meaning in columns else ""


def _latency(file: ForeignFile, context: int | None, batch: int, samples: _Samples) -> ImportedLatency:
    verify, draft = samples.curves["verify"], samples.curves["draft"]
    try:
        return ImportedLatency(
            context_tokens=context,
            batch_size=batch,
            verify=curve(verify) if verify else None,
            draft=curve(draft) if draft else None,
            overhead=Timing(samples.overhead, allow_negative=True) if samples.overhead else None,
            source=source_text(file.path, KIND),
        )
    except InvalidValueError as error:
        raise file.error("tokens", str(error)) from None


def _seconds(row: CsvRow, column: str, scale: float, *, what: str) -> float:
    seconds = row.number(column) * scale
    if not (0 < seconds <= MOST_S or (what == "overhead" and seconds == 0)):
        least = "of at least 0" if what == "overhead" else "above 0"
        text = row.cells[column]
        if what == "draft" and seconds == 0:
            raise row.error(
                f"{column}: expected a time above 0. Got 0: for drafts that cost next to nothing write a small one, such as 1 us."
            )
        raise row.error(
            f"{column}: expected a time {least}, at most {MOST_S:g} seconds. Got {text!r:.60}: remove the line."
        )
    return seconds
