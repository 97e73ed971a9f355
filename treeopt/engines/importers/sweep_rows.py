"""Sweeps over the draft length: rows of speed and accept length, as CSV or JSON."""

import math
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


def is_sweep(file: ForeignFile) -> bool:
    """Return whether the first row names a draft length, or is a result of vLLM's benchmark, and names a speed."""
    objects = file.objects if file.is_json else []
    names = {_name(each) for each in (objects[0].fields if objects else header_names(file))}
    speeds = {*STEP, *PER_TOKEN, *OF_BATCH, *PER_SEQUENCE}
    return bool(names & speeds) and bool(names & {*LENGTH, *ROOTED, *ACCEPTED, "max_concurrency"})


def read_sweep(file: ForeignFile) -> Measurements:
    """Return the rows; raises FormatError naming the row."""
    rows = _rows(file)
    shift = _shift(file, rows)
    return Measurements(sweep=tuple(_row(file, place, row, shift) for place, row in rows))


def _shift(file: ForeignFile, rows: list[tuple[str, dict[str, Any]]]) -> float:
    """Return 1 where plain decoding is written with an accept length of 0, the target's own token not counted, else 0."""
    plain = [
        _number(file, place, row, ACCEPT, 1.0)
        for place, row in rows
        if _number(file, place, row, LENGTH, math.nan) == 0
    ]
    return 1.0 if plain and all(value == 0 for value in plain) else 0.0


def _row(file: ForeignFile, place: str, row: dict[str, Any], shift: float) -> SweepRow:
    length = _length(file, place, row)
    batch = _whole(file, place, _number(file, place, row, BATCH, 1.0), BATCH[0], least=1)
    context = _number(file, place, row, CONTEXT, -1.0)
    tree = _number(file, place, row, TOP_K, 1.0) > 1
    tokens = _tokens(file, place, row, length, shift)
    return SweepRow(
        length=length,
        tree=tree,
        batch_size=batch,
        context_tokens=None if context < 0 else _whole(file, place, context, CONTEXT[0], least=0),
        step_s=_step_s(file, place, row, batch, tokens),
        tokens_per_step=tokens,
    )


def _length(file: ForeignFile, place: str, row: dict[str, Any]) -> int:
    drafts = _number(file, place, row, ("spec_decode_num_drafts",), 0.0)
    drafted = _number(file, place, row, ("spec_decode_num_draft_tokens", "spec_decode_draft_tokens"), 0.0)
    if drafts > 0 and drafted > 0:
        return _whole(file, place, round(drafted / drafts), "spec_decode_num_draft_tokens", least=1)
    given = _number(file, place, row, LENGTH, math.nan)
    if math.isnan(given):
        given = _number(file, place, row, ROOTED, math.nan) - 1
    if not math.isnan(given):
        return _whole(file, place, given, LENGTH[0], least=0)
    if "max_concurrency" in row and "mean_tpot_ms" in row and not any(name in row for name in (*ACCEPT, *ACCEPTED)):
        return 0  # vllm bench serve of a server that does not speculate
    return _no_length(file, place)


def _no_length(file: ForeignFile, place: str) -> int:
    raise file.error(place, f"expected the draft length as one of {', '.join(LENGTH)}. Got none: add the column.")


def _tokens(file: ForeignFile, place: str, row: dict[str, Any], length: int, shift: float) -> float:
    if length == 0:
        return 1.0
    tokens = shift + _number(file, place, row, ACCEPT, math.nan)
    if math.isnan(tokens):
        tokens = 1 + _number(file, place, row, ACCEPTED, math.nan)
    if not 1 <= tokens <= 1 + length:
        raise file.error(
            place,
            f"expected an accept length from 1 to {1 + length}, with the target's own token. Got {tokens:g}: where it is "
            f"not counted, name the column {ACCEPTED[0]}.",
        )
    return tokens


def _step_s(file: ForeignFile, place: str, row: dict[str, Any], batch: int, tokens: float) -> float:
    for names, factor in ((STEP, 1.0), (PER_TOKEN, tokens)):
        for name, scale in names.items():
            value = _number(file, place, row, (name,), math.nan)
            if not math.isnan(value):
                return _positive(file, place, value * scale * factor)
    rate = _number(file, place, row, PER_SEQUENCE, math.nan)
    if math.isnan(rate):
        rate = _number(file, place, row, OF_BATCH, math.nan) / batch
    return tokens / _positive(file, place, rate)


def _positive(file: ForeignFile, place: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise file.error(place, f"expected a speed above 0, as one of {', '.join((*OF_BATCH, *STEP))}. Got {value:g}.")
    return value


def _whole(file: ForeignFile, place: str, value: float, name: str, *, least: int) -> int:
    if not (least <= value <= 10_000_000 and value == int(value)):
        raise file.error(place, f"{name}: expected a whole number of at least {least}. Got {value:g}.")
    return int(value)


def _number(file: ForeignFile, place: str, row: dict[str, Any], names: tuple[str, ...], default: float) -> float:
    for name in names:
        value = row.get(name)
        if value is None or value == "":
            continue
        try:
            return float(value)
        except (TypeError, ValueError):
            raise file.error(place, f"{name}: expected a number. Got {value!r:.40}.") from None
    return default


def _rows(file: ForeignFile) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows with their places, names in lower case with _ between words."""
    if file.is_json:
        return [
            (each.place or "content", {_name(key): value for key, value in each.fields.items()})
            for each in file.objects
        ]
    table = read_rows(file)
    rows = [(row.line, {_name(name): _value(row, name) for name in table.names}) for row in table.rows]
    for name in table.names:
        texts = {str(value) for _, row in rows if isinstance(value := row[_name(name)], str)}
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
