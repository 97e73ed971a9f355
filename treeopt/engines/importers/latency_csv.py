"""Latency curves as tables: one sample per row, or one of each part in a column of its own."""

from collections.abc import Iterable, Iterator

from treeopt.engines.importers.foreign_file import ForeignFile, source_text
from treeopt.engines.importers.importer import (
    DRAFT_TIMES,
    MAX_S,
    TIMES,
    ImportedLatency,
    Importer,
    build_curve,
)
from treeopt.engines.importers.table_rows import (
    SPREADS,
    Row,
    Rows,
    join_words,
    parse_number,
    read_header,
    read_rows,
    split_words,
)
from treeopt.records.latency import Timing
from treeopt.records.step_latency import LATENCY_PARTS

UNITS = {
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("milliseconds", "millis", "msec", "ms"), 1e-3),
    **dict.fromkeys(("microseconds", "usec", "us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("nanoseconds", "nsec", "ns"), 1e-9),
}
OF_BATCH = ("batch_tokens", "num_batched_tokens")
"""Tokens of the whole batch."""
COLUMNS = {
    "tokens": (
        *("tokens", "n_tokens", "num_tokens", "number_of_tokens", "token_count", "n", *OF_BATCH),
        *("nodes", "n_nodes", "num_nodes", "tree_size", "query_len", "q_len"),
    ),
    "context": (
        *("context", "context_tokens", "context_len", "context_length", "context_size", "ctx", "ctx_len", "n_ctx"),
        *("seq_len", "seqlen", "sequence_length", "kv_len", "kv_cache_len", "kv_length", "kv_tokens"),
        *("past_len", "cache_len", "cached_tokens", "prefix_len", "n_depth"),
    ),
    "batch": (
        *("batch", "batch_size", "batchsize", "bs", "bsz", "concurrency"),
        *("n_seqs", "num_seqs", "sequences", "num_sequences"),
    ),
    "pass": ("pass",),
}
"""Names of columns by their meaning, with _ between words."""
SPEEDS = frozenset(("per", "tok", "token", "tokens", "tps", "throughput", "speed"))
"""Words of a column of speeds, whose name ends in a unit too."""
PASSES = frozenset(("step", "pass", "iteration", "iter", "forward", "call"))
"""What a time may be per, such as `ms/step`."""
MEANS = frozenset(("mean", "avg", "average", "median", "p50"))
TOTALS = frozenset(("total", "totals", "cumulative", "sum", "elapsed", "wall"))
COUNTS = frozenset(("iterations", "iters", "reps", "repeats", "repetitions", "runs", "calls", "loops"))
"""Words of a time that may be that of many passes, and of their number."""
DURATIONS = frozenset(("time", "latency", "duration", "elapsed", "wall"))
BLOCK = "block"
"""A pass that drafts all levels; `tokens` are then the levels."""
PARTS = (*LATENCY_PARTS, BLOCK)
COLUMNS_HELP = "tokens, a time such as ms, latency_us or verify_ms, optionally context, batch and pass"
MAX_CONDITIONS = 1000


_Samples = dict[str, dict[int, list[float]]]
"""Seconds at one context and batch size, by part and token count; overhead counts as of no tokens."""


def is_csv(file: ForeignFile) -> bool:
    """Return whether a table has tokens and times; if times are expected, any table of text that may be meant for one."""
    names = read_header(file)
    has_tokens, has_times = any(join_words(name) in COLUMNS["tokens"] for name in names), any(map(_parse_unit, names))
    may_be_meant = not file.is_json and file.part in CSV.contains
    return (has_tokens and has_times) or (may_be_meant and (has_tokens or has_times or len(names) > 1))


def read_csv(file: ForeignFile) -> tuple[ImportedLatency, ...]:
    """Return the times, one record per context and batch size in the order of their first lines.

    Raises FormatError naming the line and the reason.
    """
    table = read_rows(file)
    columns = _find_columns(file, table)
    times = _find_times(file, table, columns)
    _check_single_passes(file, table, times.values())
    speeds = [name for name in table.names if SPEEDS & set(split_words(name.replace("/", " per ")))]
    point = [columns[meaning] for meaning in COLUMNS if meaning in columns]
    table.check_constant(
        frozenset([*columns.values(), *times.values(), *speeds]),
        [tuple(row.cells[column] for column in point) for row in table.rows],
    )
    default_pass = "draft" if file.part == DRAFT_TIMES else "verify"
    conditions: dict[tuple[int | None, int], _Samples] = {}
    for row in table.rows:
        context = row.whole(columns["context"], least=0) if _cell(row, columns, "context") else None
        batch_size = row.whole(columns["batch"]) if _cell(row, columns, "batch") else 1
        samples = conditions.setdefault((context, batch_size), {part: {} for part in PARTS})
        if len(conditions) > MAX_CONDITIONS:
            raise row.error(f"expected at most {MAX_CONDITIONS} pairs of context and batch. Got more.")
        for part, column in _find_row_times(row, times, columns, default_pass):
            seconds = _read_seconds(row, column, part)
            tokens = 0 if part == "overhead" else _read_tokens(row, columns["tokens"], batch_size)
            samples[part].setdefault(tokens, []).append(seconds)
    return tuple(
        _build_latency(file, context, batch_size, samples) for (context, batch_size), samples in conditions.items()
    )


def _find_columns(file: ForeignFile, table: Rows) -> dict[str, str]:
    """Return the names of the columns by their meaning; one that names a part in some row is `pass`.

    Raises FormatError for two columns of one meaning.
    """
    columns = {}
    for meaning, names in COLUMNS.items():
        present = [name for name in table.names if join_words(name) in names]
        if len(present) > 1:
            raise file.error(
                table.header_line, f"expected one column of {meaning}. Got {', '.join(present)}: remove one."
            )
        if present:
            columns[meaning] = present[0]
    named_parts = (name for name in table.names if any(row.cells[name].lower() in PARTS for row in table.rows))
    if "pass" not in columns and (name := next(named_parts, None)) is not None:
        columns["pass"] = name
    return columns


def _find_times(file: ForeignFile, table: Rows, columns: dict[str, str]) -> dict[str, str]:
    """Return the columns of times by the part that each is named after.

    The part of a single column is empty if its name contains none, or if each row names its pass.
    """
    times = [name for name in table.names if _parse_unit(name)]
    without_unit = [name for name in table.names if DURATIONS & set(split_words(name))]
    if "tokens" in columns and without_unit and not times:
        raise file.error(
            table.header_line,
            f"expected a unit in the name of the times. Got {without_unit[0]!r:.60}: add _s, _ms, _us or _ns.",
        )
    if "tokens" not in columns or not times:
        raise file.error(
            table.header_line, f"expected a line of names: {COLUMNS_HELP}. Got {', '.join(table.names)!r:.80}."
        )
    by_part = {split_words(name)[0]: name for name in times if split_words(name)[0] in PARTS}
    if len(times) == 1 and (not by_part or "pass" in columns):
        return {"": times[0]}
    if len(by_part) < len(times) or "pass" in columns:
        raise file.error(
            table.header_line,
            f"expected one column of times. Got {', '.join(times)[:80]}: remove the others, or name each after its part, "
            "such as verify_ms, without a column pass.",
        )
    return by_part


def _check_single_passes(file: ForeignFile, table: Rows, times: Iterable[str]) -> None:
    """Raise FormatError for a total time next to a column with the number of passes."""
    totals = [name for name in times if TOTALS & set(split_words(name))]
    counts = [name for name in table.names if COUNTS & set(split_words(name))]
    if totals and any(parse_number(row.cells[name], row.decimal) > 1 for name in counts for row in table.rows):
        raise file.error(
            table.header_line,
            f"expected the time of one pass. Got {totals[0]!r:.40} and {counts[0]!r:.40}: divide the time by the number of "
            "passes, and leave that column out.",
        )


def _find_row_times(
    row: Row, times: dict[str, str], columns: dict[str, str], default_pass: str
) -> Iterator[tuple[str, str]]:
    """Yield the parts that a row has times of, each with its column."""
    if "" not in times:
        yield from ((part, column) for part, column in times.items() if row.cells[column])
        return
    part = _cell(row, columns, "pass").lower() or default_pass
    if part not in PARTS:
        raise row.error(f"{columns['pass']}: expected {', '.join(PARTS)} or nothing. Got {part!r:.60}.")
    yield part, times[""]


def _read_tokens(row: Row, column: str, batch_size: int) -> int:
    """Return the tokens of one sequence."""
    tokens = row.whole(column)
    if join_words(column) not in OF_BATCH:
        return tokens
    if tokens % batch_size:
        raise row.error(f"{column}: expected a multiple of the batch of {batch_size}. Got {tokens}: remove the line.")
    return tokens // batch_size


def _read_seconds(row: Row, column: str, part: str) -> float:
    unit_s = _parse_unit(column)
    assert unit_s is not None  # it is a column of times
    seconds = row.number(column) * unit_s
    if 0 < seconds <= MAX_S or (part == "overhead" and seconds == 0):
        return seconds
    if part in ("draft", BLOCK) and seconds == 0:
        raise row.error(
            f"{column}: expected a time above 0. Got 0: for drafts that cost next to nothing write a small one, such as 1 us."
        )
    least = "of at least 0" if part == "overhead" else "above 0"
    text = row.cells[column]
    raise row.error(f"{column}: expected a time {least}, at most {MAX_S:g} seconds. Got {text!r:.60}: remove the line.")


def _build_latency(file: ForeignFile, context: int | None, batch_size: int, samples: _Samples) -> ImportedLatency:
    verify, draft, block = (samples[part] for part in ("verify", "draft", BLOCK))
    if draft and block:
        raise file.error("tokens", "expected times of draft or of block passes. Got both: remove one.")
    if block:
        block.setdefault(1, block[min(block)])  # a pass that drafts n levels drafts fewer as well
    return file.build(
        "tokens",
        lambda: ImportedLatency(
            context_tokens=context,
            batch_size=batch_size,
            verify=build_curve(verify) if verify else None,
            draft=build_curve(draft or block) if draft or block else None,
            per_block=bool(block),
            overhead=Timing(samples["overhead"][0], allow_negative=True) if samples["overhead"] else None,
            source=source_text(file.path, "CSV"),
        ),
    )


def _parse_unit(name: str) -> float | None:
    """Return the unit of a column of times in seconds; None for speeds and spreads.

    >>> [_parse_unit(name) for name in ("Latency [ms]", "step_us_mean", "ms/step", "steps/s", "std_ms")]
    [0.001, 1e-06, 0.001, None, None]
    """
    parts = split_words(name.replace("/", " per "))
    if "per" in parts[:-1] and parts[parts.index("per") + 1] in PASSES:
        del parts[parts.index("per") : parts.index("per") + 2]
    while parts and parts[-1] in MEANS:
        parts.pop()
    return None if not parts or (SPEEDS | SPREADS) & set(parts) else UNITS.get(parts[-1])


def _cell(row: Row, columns: dict[str, str], meaning: str) -> str:
    return row.cells[columns[meaning]] if meaning in columns else ""


CSV = Importer(
    name="csv",
    title="curves (CSV, Markdown, rows of JSON)",
    contains=(TIMES, DRAFT_TIMES),
    needs="names with tokens and a time such as ms or latency_us, optionally context, batch and pass",
    matches=is_csv,
    read=read_csv,
)
