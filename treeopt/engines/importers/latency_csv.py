"""Curves as CSV: a line of names, then one sample a line, or one of each part in columns of their own."""

from collections.abc import Iterator
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
    "tokens": frozenset(
        [
            "tokens",
            "n_tokens",
            "num_tokens",
            "number_of_tokens",
            "batch_tokens",
            "num_batched_tokens",
            "token_count",
            "nodes",
            "n_nodes",
            "num_nodes",
            "tree_size",
            "query_len",
            "q_len",
            "n",
        ]
    ),
    "context": frozenset(
        [
            "context",
            "context_tokens",
            "context_len",
            "context_length",
            "context_size",
            "ctx",
            "ctx_len",
            "n_ctx",
            "seq_len",
            "seqlen",
            "sequence_length",
            "kv_len",
            "kv_length",
            "kv_tokens",
            "past_len",
            "cache_len",
            "cached_tokens",
            "prefix_len",
            "n_depth",
        ]
    ),
    "batch": frozenset(
        [
            "batch",
            "batch_size",
            "batchsize",
            "bs",
            "bsz",
            "n_seqs",
            "num_seqs",
            "sequences",
            "num_sequences",
            "concurrency",
        ]
    ),
    "pass": frozenset(["pass"]),
}
"""Names of the columns by their meaning, with _ between words."""
OF_BATCH = frozenset(["batch_tokens", "num_batched_tokens"])
"""Tokens over the whole batch."""
SPEEDS = frozenset(("per", "tok", "token", "tokens", "tps", "throughput", "speed"))
"""Words of a column of speeds, which ends in a unit too."""
PASSES = frozenset(("step", "pass", "iteration", "iter", "forward", "call"))
"""What a time may be taken per."""
MEANS = frozenset(("mean", "avg", "average", "median"))
DURATIONS = frozenset(("time", "latency", "duration", "elapsed", "wall"))
BLOCK = "block"
"""What drafts all levels in one pass; `tokens` are then the levels."""
PARTS = (*LATENCY_PARTS, BLOCK)
TAKEN = "tokens, a time such as ms, latency_us or verify_ms, and if need be context, batch and pass"
MAX_CONDITIONS = 1000
KIND = "CSV"


@dataclass(slots=True)
class _Samples:
    """Seconds of one condition, curves by their count of tokens."""

    curves: dict[str, dict[int, list[float]]] = field(default_factory=lambda: {"verify": {}, "draft": {}, BLOCK: {}})
    overhead: list[float] = field(default_factory=list)


def is_csv(file: ForeignFile) -> bool:
    """Return whether a text that is no JSON begins with a line of names, or of several values."""
    names = header_names(file)
    return len(names) > 1 or any("_".join(words(name)) in COLUMNS["tokens"] or _scale(name) for name in names)


def read_csv(file: ForeignFile) -> Measurements:
    """Return the times, one record per context and batch in the order of their first lines.

    Raises FormatError naming the line and the reason.
    """
    table = read_rows(file)
    columns = _columns(file, table)
    times = _times(file, table, columns)
    speeds = [name for name in table.names if SPEEDS & set(words(name.replace("/", " per ")))]
    keys = [columns[meaning] for meaning in COLUMNS if meaning in columns]
    table.check_constant(
        frozenset([*columns.values(), *times.values(), *speeds]),
        lambda row: tuple(row.cells[column] for column in keys),
    )
    conditions: dict[tuple[int | None, int], _Samples] = {}
    for row in table.rows:
        context = row.whole(columns["context"], least=0) if _cell(row, columns, "context") else None
        batch = row.whole(columns["batch"]) if _cell(row, columns, "batch") else 1
        samples = conditions.setdefault((context, batch), _Samples())
        if len(conditions) > MAX_CONDITIONS:
            raise row.error(f"expected at most {MAX_CONDITIONS} pairs of context and batch. Got more.")
        for what, column in _row_times(row, times, columns, file.default_pass):
            seconds = _seconds(row, column, what=what)
            if what == "overhead":
                samples.overhead.append(seconds)
            else:
                tokens = _tokens(row, columns["tokens"], batch)
                samples.curves[what].setdefault(tokens, []).append(seconds)
    return Measurements(
        latencies=tuple(_latency(file, *condition, samples) for condition, samples in conditions.items())
    )


def _row_times(
    row: CsvRow, times: dict[str, str], columns: dict[str, str], default_pass: str
) -> Iterator[tuple[str, str]]:
    """Yield the parts that a row has times of, each with its column."""
    if "" not in times:
        yield from ((part, column) for part, column in times.items() if row.cells[column])
        return
    what = _cell(row, columns, "pass").lower() or default_pass
    if what not in PARTS:
        raise row.error(f"pass: expected {', '.join(PARTS)} or nothing. Got {what!r:.60}.")
    yield what, times[""]


def _columns(file: ForeignFile, table: CsvRows) -> dict[str, str]:
    """Return the names of the columns by their meaning; raises FormatError where there are several."""
    columns = {}
    for meaning, names in COLUMNS.items():
        present = [name for name in table.names if "_".join(words(name)) in names]
        if len(present) > 1:
            raise file.error(table.line, f"expected one column of {meaning}. Got {', '.join(present)}: remove one.")
        if present:
            columns[meaning] = present[0]
    return columns


def _times(file: ForeignFile, table: CsvRows, columns: dict[str, str]) -> dict[str, str]:
    """Return the columns of times by the part that each is named after; one that names none stands for all passes, as ``."""
    times = [name for name in table.names if _scale(name)]
    nameless = [name for name in table.names if DURATIONS & set(words(name))]
    if "tokens" in columns and nameless and not times:
        raise file.error(
            table.line, f"expected a unit in the name of the times. Got {nameless[0]!r:.60}: add _s, _ms, _us or _ns."
        )
    if "tokens" not in columns or not times:
        raise file.error(table.line, f"expected a line of names: {TAKEN}. Got {', '.join(table.names)!r:.80}.")
    by_part = {words(name)[0]: name for name in times if words(name)[0] in PARTS}
    if len(times) == 1 and (not by_part or "pass" in columns):
        return {"": times[0]}
    if len(by_part) < len(times) or "pass" in columns:
        raise file.error(
            table.line,
            f"expected one column of times. Got {', '.join(times)[:80]}: remove the others, or name each after its part, "
            "such as verify_ms, and remove the column pass.",
        )
    return by_part


def _scale(name: str) -> float | None:
    """Return the seconds of the unit of a column of times; None for speeds, and for how times spread.

    >>> _scale("Latency [ms]"), _scale("step_us_mean"), _scale("ms/step"), _scale("steps/s"), _scale("std_ms")
    (0.001, 1e-06, 0.001, None, None)
    """
    parts = words(name.replace("/", " per "))
    if "per" in parts[:-1] and parts[parts.index("per") + 1] in PASSES:
        del parts[parts.index("per") : parts.index("per") + 2]
    while parts and parts[-1] in MEANS:
        parts.pop()
    return None if not parts or (SPEEDS | SPREADS) & set(parts) else UNITS.get(parts[-1])


def _tokens(row: CsvRow, column: str, batch: int) -> int:
    """Return the tokens of one sequence."""
    tokens = row.whole(column)
    if "_".join(words(column)) not in OF_BATCH:
        return tokens
    if tokens % batch:
        raise row.error(f"{column}: expected a multiple of the batch of {batch}. Got {tokens}: remove the line.")
    return tokens // batch


def _cell(row: CsvRow, columns: dict[str, str], meaning: str) -> str:
    return row.cells[columns[meaning]] if meaning in columns else ""


def _latency(file: ForeignFile, context: int | None, batch: int, samples: _Samples) -> ImportedLatency:
    verify, draft, block = (samples.curves[part] for part in ("verify", "draft", BLOCK))
    if draft and block:
        raise file.error("tokens", "expected times of draft or of block passes. Got both: remove one.")
    if block:
        block.setdefault(1, block[min(block)])  # a pass that drafts n levels drafts fewer as well
    try:
        return ImportedLatency(
            context_tokens=context,
            batch_size=batch,
            verify=curve(verify) if verify else None,
            draft=curve(draft or block) if draft or block else None,
            per_block=bool(block),
            overhead=Timing(samples.overhead, allow_negative=True) if samples.overhead else None,
            source=source_text(file.path, KIND),
        )
    except InvalidValueError as error:
        raise file.error("tokens", str(error)) from None


def _seconds(row: CsvRow, column: str, *, what: str) -> float:
    scale = _scale(column)
    assert scale is not None  # it is a column of times
    seconds = row.number(column) * scale
    if not (0 < seconds <= MOST_S or (what == "overhead" and seconds == 0)):
        least = "of at least 0" if what == "overhead" else "above 0"
        text = row.cells[column]
        if what in ("draft", BLOCK) and seconds == 0:
            raise row.error(
                f"{column}: expected a time above 0. Got 0: for drafts that cost next to nothing write a small one, such as 1 us."
            )
        raise row.error(
            f"{column}: expected a time {least}, at most {MOST_S:g} seconds. Got {text!r:.60}: remove the line."
        )
    return seconds
