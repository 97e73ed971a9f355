"""Sweeps over the draft length: rows of speed and accept length, as CSV or JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.engines.importers.csv_rows import REPEATS, CsvRow, join_words, read_header, read_rows, split_words
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile
from treeopt.engines.importers.importer import SWEEP, Importer, Measurements, SweepRow
from treeopt.errors import FormatError

LENGTH = (
    "k",
    "num_speculative_tokens",
    "num_spec_tokens",
    "draft_length",
    "draft_len",
    "gamma",
    "spec_len",
    "speculative_tokens",
    "steps",
    "num_steps",
)
ROOTED = ("num_draft_tokens",)
"""Includes the root, as in SGLang."""
CONCURRENCY = "max_concurrency"
"""Null in results of vLLM's and SGLang's benchmarks without a limit."""
BATCH = ("batch", "batch_size", "bs", "concurrency", CONCURRENCY)
CONTEXT = ("context", "context_tokens", "context_length")
TOP_K = ("topk", "top_k", "eagle_topk")
STEP = {"step_time": 1.0, "step_time_s": 1.0, "step_s": 1.0, "step_time_ms": 1e-3, "step_ms": 1e-3}
PER_TOKEN = {"tpot_s": 1.0, "tpot_ms": 1e-3, "mean_tpot_ms": 1e-3}
OF_BATCH = (
    "tokens_per_second",
    "tokens_per_s",
    "tok_s",
    "tps",
    "throughput",
    "throughput_tok_s",
    "output_throughput",
    "tok_s_total",
)
PER_SEQUENCE = ("tokens_per_second_per_user", "tok_s_per_user", "per_user")
ACCEPT = (
    "accept_length",
    "accept_len",
    "acc_length",
    "acceptance_length",
    "mean_acceptance_length",
    "spec_decode_acceptance_length",
)
"""Including the target's own token."""
ACCEPTED = ("accepted_tokens", "mean_accepted_tokens", "accepted_per_step")
"""Excluding it."""
MAX_WHOLE = 10_000_000


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the file by column name in lower case, with _ between words."""

    file: ForeignFile
    place: str
    values: dict[str, Any]

    def number(self, names: tuple[str, ...], default: float = math.nan) -> float:
        """Return the value of the first of the columns that has one."""
        for name in names:
            value = self.values.get(name)
            if value is None or value == "":
                continue
            try:
                if not isinstance(value, bool):
                    return float(value)
            except (TypeError, ValueError):
                pass
            raise self.error(f"{name}: expected a number. Got {value!r:.40}.")
        return default

    def whole(self, value: float, name: str, *, least: int, most: int = MAX_WHOLE) -> int:
        """Return a value of a column as a whole number; raises FormatError for anything else."""
        if not (least <= value <= most and value == int(value)):
            raise self.error(f"{name}: expected a whole number from {least} to {most}. Got {value:g}.")
        return int(value)

    def error(self, reason: str) -> FormatError:
        return self.file.error(self.place, reason)


def is_sweep(file: ForeignFile) -> bool:
    """Return whether the first row has a speed, and a draft length or what vLLM's benchmark writes instead."""
    objects = file.objects if file.is_json else []
    names = {join_words(name) for name in (objects[0].content if objects else read_header(file))}
    speeds = {*STEP, *PER_TOKEN, *OF_BATCH, *PER_SEQUENCE}
    return bool(names & speeds) and bool(names & {*LENGTH, *ROOTED, *ACCEPTED, CONCURRENCY})


def read_sweep(file: ForeignFile) -> Measurements:
    """Return the rows; raises FormatError naming the row."""
    rows = _read_rows(file)
    plain = [row.number(ACCEPT, 1.0) for row in rows if row.number(LENGTH) == 0]
    # an accept length of 0 for plain decoding does not include the target's own token
    own_token = 1.0 if plain and all(tokens == 0 for tokens in plain) else 0.0
    return Measurements(sweep=tuple(_build_row(row, own_token) for row in rows))


def _read_rows(file: ForeignFile) -> list[_Row]:
    """Return the rows; raises FormatError for text columns with several values, such as several models."""
    if file.is_json:
        return [
            _Row(
                file,
                result.place or "content",
                {join_words(name): value for name, value in result.content.items()},
            )
            for result in file.objects
        ]
    table = read_rows(file)
    rows = [
        _Row(file, row.line, {join_words(name): _parse_cell(row, name) for name in table.names}) for row in table.rows
    ]
    for name in table.names:
        texts = {str(value) for row in rows if isinstance(value := row.values[join_words(name)], str)}
        if len(texts) > 1 and not set(split_words(name)) & REPEATS:
            examples = ", ".join(map(repr, sorted(texts)[:3]))
            raise file.error(
                table.header_line,
                f"expected one value in the column {name!r:.40}. Got {examples:.80}: keep the rows of one.",
            )
    return rows


def _parse_cell(row: CsvRow, name: str) -> float | str | None:
    """Return a cell as a number, otherwise as text; None if it is empty or a missing value."""
    text = row.cells[name]
    if text.lower() in ("", "na", "nan", "null", "none", "-"):
        return None
    try:
        return row.number(name)
    except FormatError:
        return text


def _build_row(row: _Row, own_token: float) -> SweepRow:
    length = _read_length(row)
    concurrent = row.number(BATCH)
    if math.isnan(concurrent) and CONCURRENCY in row.values:
        raise row.error(
            f"{CONCURRENCY}: expected the number of concurrent requests. Got none: run the benchmark with --max-concurrency."
        )
    batch_size = row.whole(1.0 if math.isnan(concurrent) else concurrent, BATCH[0], least=1)
    context = row.number(CONTEXT, -1.0)
    tree = row.number(TOP_K, 1.0) > 1
    step_s = _read_seconds(row, STEP)
    return SweepRow(
        length=length,
        tree=tree,
        batch_size=batch_size,
        context_tokens=None if context < 0 else row.whole(context, CONTEXT[0], least=0),
        step_s=step_s,
        token_s=_read_token_s(row, batch_size) if step_s is None else None,
        tokens_per_step=_read_accept_length(row, length, own_token),
    )


def _read_length(row: _Row) -> int:
    drafts = row.number(("spec_decode_num_drafts",), 0.0)
    drafted = row.number(("spec_decode_num_draft_tokens", "spec_decode_draft_tokens"), 0.0)
    if drafts > 0 and drafted > 0:
        ratio = drafted / drafts
        length = round(ratio) if math.isfinite(ratio) else ratio
        return row.whole(length, "spec_decode_num_draft_tokens", least=1, most=MAX_STEP_TOKENS)
    length = row.number(LENGTH)
    if math.isnan(length):
        length = row.number(ROOTED) - 1
    if not math.isnan(length):
        return row.whole(length, LENGTH[0], least=0, most=MAX_STEP_TOKENS)
    if {CONCURRENCY, "mean_tpot_ms"} <= row.values.keys() and not row.values.keys() & {*ACCEPT, *ACCEPTED}:
        return 0  # vllm bench serve of a server that does not speculate
    raise row.error(f"expected the draft length as one of {', '.join(LENGTH)}. Got none: add the column.")


def _read_accept_length(row: _Row, length: int, own_token: float) -> float | None:
    if length == 0:
        return 1.0
    tokens = own_token + row.number(ACCEPT)
    if math.isnan(tokens):
        tokens = 1 + row.number(ACCEPTED)
    if math.isnan(tokens):
        return None
    if not 1 <= tokens <= 1 + length:
        raise row.error(
            f"expected an accept length from 1 to {1 + length}, with the target's own token. Got {tokens:g}: where it is "
            f"not counted, name the column {ACCEPTED[0]}.",
        )
    return tokens


def _read_seconds(row: _Row, units: Mapping[str, float]) -> float | None:
    for name, unit_s in units.items():
        value = row.number((name,))
        if not math.isnan(value):
            return _check_positive(row, value * unit_s)
    return None


def _read_token_s(row: _Row, batch_size: int) -> float:
    token_s = _read_seconds(row, PER_TOKEN)
    if token_s is not None:
        return token_s
    speed = row.number(PER_SEQUENCE)
    if math.isnan(speed):
        speed = row.number(OF_BATCH) / batch_size
    return 1 / _check_positive(row, speed)


def _check_positive(row: _Row, value: float) -> float:
    if not 0 < value < math.inf:
        raise row.error(f"expected a speed above 0, as one of {', '.join((*OF_BATCH, *STEP))}. Got {value:g}.")
    return value


SWEEP_ROWS = Importer(
    name="sweep",
    title="speed by draft length (CSV, JSON, JSON Lines)",
    contains=(SWEEP,),
    needs="a draft length and step time or tokens per second in each row, and accept lengths; plain decoding is length 0",
    matches=is_sweep,
    read=read_sweep,
)
