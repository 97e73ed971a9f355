"""Sweeps over the draft length: rows of speed and accept length, as CSV or JSON."""

import math
from dataclasses import dataclass
from typing import Any

from treeopt.engines.importers.csv_rows import REPEATS, CsvRow, header_names, read_rows, words
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import Measurements, SweepRow
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
"""Counts the token that the draft hangs on, as SGLang does."""
BATCH = ("batch", "batch_size", "bs", "concurrency", "max_concurrency")
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
"""With the target's own token."""
ACCEPTED = ("accepted_tokens", "mean_accepted_tokens", "accepted_per_step")
"""Without it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the file as it is written; names in lower case with _ between words."""

    file: ForeignFile
    place: str
    values: dict[str, Any]

    def number(self, names: tuple[str, ...], default: float = math.nan) -> float:
        """Return the first of some columns that has a value."""
        for name in names:
            value = self.values.get(name)
            if value is None or value == "":
                continue
            try:
                return float(value)
            except (TypeError, ValueError):
                raise self.error(f"{name}: expected a number. Got {value!r:.40}.") from None
        return default

    def whole(self, value: float, name: str, *, least: int) -> int:
        """Return a value of a column as a whole number."""
        if not (least <= value <= 10_000_000 and value == int(value)):
            raise self.error(f"{name}: expected a whole number of at least {least}. Got {value:g}.")
        return int(value)

    def error(self, reason: str) -> FormatError:
        return self.file.error(self.place, reason)


def is_sweep(file: ForeignFile) -> bool:
    """Return whether the first row names a draft length, or is a result of vLLM's benchmark, and names a speed."""
    objects = file.objects if file.is_json else []
    names = {_name(each) for each in (objects[0].fields if objects else header_names(file))}
    speeds = {*STEP, *PER_TOKEN, *OF_BATCH, *PER_SEQUENCE}
    return bool(names & speeds) and bool(names & {*LENGTH, *ROOTED, *ACCEPTED, "max_concurrency"})


def read_sweep(file: ForeignFile) -> Measurements:
    """Return the rows; raises FormatError naming the row."""
    rows = _rows(file)
    shift = _shift(rows)
    return Measurements(sweep=tuple(_sweep_row(row, shift) for row in rows))


def _shift(rows: list[_Row]) -> float:
    """Return 1 where plain decoding is written with an accept length of 0, the target's own token not counted, else 0."""
    plain = [row.number(ACCEPT, 1.0) for row in rows if row.number(LENGTH) == 0]
    return 1.0 if plain and all(value == 0 for value in plain) else 0.0


def _sweep_row(row: _Row, shift: float) -> SweepRow:
    length = _length(row)
    batch = row.whole(row.number(BATCH, 1.0), BATCH[0], least=1)
    context = row.number(CONTEXT, -1.0)
    tree = row.number(TOP_K, 1.0) > 1
    tokens = _tokens(row, length, shift)
    return SweepRow(
        length=length,
        tree=tree,
        batch_size=batch,
        context_tokens=None if context < 0 else row.whole(context, CONTEXT[0], least=0),
        step_s=_step_s(row, batch, tokens),
        tokens_per_step=tokens,
    )


def _length(row: _Row) -> int:
    drafts = row.number(("spec_decode_num_drafts",), 0.0)
    drafted = row.number(("spec_decode_num_draft_tokens", "spec_decode_draft_tokens"), 0.0)
    if drafts > 0 and drafted > 0:
        return row.whole(round(drafted / drafts), "spec_decode_num_draft_tokens", least=1)
    given = row.number(LENGTH)
    if math.isnan(given):
        given = row.number(ROOTED) - 1
    if not math.isnan(given):
        return row.whole(given, LENGTH[0], least=0)
    if (
        "max_concurrency" in row.values
        and "mean_tpot_ms" in row.values
        and not any(name in row.values for name in (*ACCEPT, *ACCEPTED))
    ):
        return 0  # vllm bench serve of a server that does not speculate
    raise row.error(f"expected the draft length as one of {', '.join(LENGTH)}. Got none: add the column.")


def _tokens(row: _Row, length: int, shift: float) -> float:
    if length == 0:
        return 1.0
    tokens = shift + row.number(ACCEPT)
    if math.isnan(tokens):
        tokens = 1 + row.number(ACCEPTED)
    if not 1 <= tokens <= 1 + length:
        raise row.error(
            f"expected an accept length from 1 to {1 + length}, with the target's own token. Got {tokens:g}: where it is "
            f"not counted, name the column {ACCEPTED[0]}.",
        )
    return tokens


def _step_s(row: _Row, batch: int, tokens: float) -> float:
    for names, factor in ((STEP, 1.0), (PER_TOKEN, tokens)):
        for name, scale in names.items():
            value = row.number((name,))
            if not math.isnan(value):
                return _positive(row, value * scale * factor)
    rate = row.number(PER_SEQUENCE)
    if math.isnan(rate):
        rate = row.number(OF_BATCH) / batch
    return tokens / _positive(row, rate)


def _positive(row: _Row, value: float) -> float:
    if not 0 < value < math.inf:
        raise row.error(f"expected a speed above 0, as one of {', '.join((*OF_BATCH, *STEP))}. Got {value:g}.")
    return value


def _rows(file: ForeignFile) -> list[_Row]:
    """Return the rows; raises FormatError for columns of texts that differ, as rows of several models have them."""
    if file.is_json:
        return [
            _Row(file, each.place or "content", {_name(key): value for key, value in each.fields.items()})
            for each in file.objects
        ]
    table = read_rows(file)
    rows = [_Row(file, row.line, {_name(name): _value(row, name) for name in table.names}) for row in table.rows]
    for name in table.names:
        texts = {str(value) for row in rows if isinstance(value := row.values[_name(name)], str)}
        if len(texts) > 1 and not set(words(name)) & REPEATS:
            shown = ", ".join(map(repr, sorted(texts)[:3]))
            raise file.error(
                table.line, f"expected one value in the column {name!r:.40}. Got {shown:.80}: keep the rows of one."
            )
    return rows


def _value(row: CsvRow, name: str) -> float | str | None:
    """Return a cell as a number, else as text; None where it is empty or no value."""
    text = row.cells[name]
    if text.lower() in ("", "na", "nan", "null", "none", "-"):
        return None
    try:
        return row.number(name)
    except FormatError:
        return text


def _name(name: str) -> str:
    return "_".join(name.strip().lower().replace("-", " ").replace("/", " ").split())
