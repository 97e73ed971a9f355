"""Sweeps over the draft length: rows of speed and accept length, as CSV or JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile
from treeopt.engines.importers.importer import SWEEP, Importer, SweepRow
from treeopt.engines.importers.table_rows import Row, Rows, join_words, read_header, read_rows

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
    "speculative_num_steps",
    "speculative_config_num_speculative_tokens",
)
ROOTED = ("num_draft_tokens", "speculative_num_draft_tokens")
"""Includes the root, as in SGLang."""
CONCURRENCY = "max_concurrency"
"""Null in results of vLLM's and SGLang's benchmarks without a limit; SGLang's `concurrency` is a mean."""
BATCH = ("batch", "batch_size", "bs", "concurrency")
PROMPTS = "num_prompts"
"""Requests of a benchmark."""
CONTEXT = ("context", "context_tokens", "context_length")
MODEL = ("model_id", "model", "target")
TOP_K = ("topk", "top_k", "eagle_topk", "speculative_eagle_topk")
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
SPEEDS = (*STEP, *PER_TOKEN, *OF_BATCH, *PER_SEQUENCE)
DRAFTS, DRAFTED = "spec_decode_num_drafts", ("spec_decode_num_draft_tokens", "spec_decode_draft_tokens")
COLUMNS = frozenset(
    (*LENGTH, *ROOTED, *BATCH, CONCURRENCY, *CONTEXT, *TOP_K, *SPEEDS, *ACCEPT, *ACCEPTED, DRAFTS, *DRAFTED, PROMPTS)
)
SERIES = "_benchmark_name"
"""Name that `vllm bench sweep` gives to settings that have columns of their own."""
MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
"""Cells without a value, in lower case."""
MAX_WHOLE = 10_000_000


def is_sweep(file: ForeignFile) -> bool:
    """Return whether rows have a speed, and a draft length or what vLLM's benchmark writes instead."""
    names = set(map(join_words, read_header(file)))
    return not names.isdisjoint(SPEEDS) and not names.isdisjoint((*LENGTH, *ROOTED, *ACCEPTED, CONCURRENCY))


def read_sweep(file: ForeignFile) -> tuple[SweepRow, ...]:
    """Return the rows; raises FormatError naming the row, and for columns that look like several settings."""
    table = _read_rows(file)
    lengths = [_read_length(row) for row in table.rows]
    own_token = _missing_own_token(table.rows, lengths)
    rows = [_build_row(row, length, own_token) for row, length in zip(table.rows, lengths, strict=True)]
    table.check_constant(COLUMNS, [(row.length, row.tree, row.batch_size, row.context_tokens) for row in rows])
    return tuple(rows)


def _read_rows(file: ForeignFile) -> Rows:
    """Return the rows by column names with _ between words."""
    table = read_rows(file)
    names = {name: join_words(name) for name in table.names if name != SERIES}
    return Rows(
        table.header_line,
        list(names.values()),
        [
            replace(row, cells={names[name]: cell for name, cell in row.cells.items() if name in names})
            for row in table.rows
        ],
    )


def _read_number(row: Row, names: Sequence[str], default: float = math.nan) -> float:
    """Return the number in the first of the columns that has one."""
    for name in names:
        if row.cells.get(name, "").lower() not in MISSING:
            return row.number(name)
    return default


def _check_whole(row: Row, value: float, name: str, *, least: int, most: int = MAX_WHOLE) -> int:
    """Return a value of a column as a whole number; raises FormatError for anything else."""
    if not (least <= value <= most and value == int(value)):
        raise row.error(f"{name}: expected a whole number from {least} to {most}. Got {value:g}.")
    return int(value)


def _missing_own_token(rows: Sequence[Row], lengths: Sequence[int]) -> float:
    """Return 1 if accept lengths do not include the target's own token, that of plain decoding being 0; otherwise 0.

    Raises FormatError if the 0 may also stand for none.
    """
    plain = [_read_number(row, ACCEPT, 1.0) for row, length in zip(rows, lengths, strict=True) if length == 0]
    drafted = [(_read_number(row, ACCEPT), length) for row, length in zip(rows, lengths, strict=True) if length]
    if not plain or any(plain) or any(tokens > length for tokens, length in drafted):
        return 0.0
    if drafted and all(tokens >= 1 for tokens, _ in drafted):
        raise rows[lengths.index(0)].error(
            f"expected an accept length of 1 for plain decoding, the target's own token. Got 0: write 1, or name the column "
            f"{ACCEPTED[0]} if the token is not counted in the other rows either."
        )
    return 1.0


def _build_row(row: Row, length: int, own_token: float) -> SweepRow:
    concurrent = _read_number(row, (CONCURRENCY,) if CONCURRENCY in row.cells else BATCH)
    if math.isnan(concurrent) and CONCURRENCY in row.cells:
        raise row.error(
            f"{CONCURRENCY}: expected the number of concurrent requests. Got none: run the benchmark with --max-concurrency."
        )
    batch_size = _check_whole(row, 1.0 if math.isnan(concurrent) else concurrent, BATCH[0], least=1)
    prompts = _read_number(row, (PROMPTS,))
    if prompts < batch_size:
        raise row.error(
            f"{PROMPTS}: expected at least {batch_size}, as many as run together. Got {prompts:g}: benchmark more prompts."
        )
    context = _read_number(row, CONTEXT, -1.0)
    tree = _read_number(row, TOP_K, 1.0) > 1
    step_s = _read_seconds(row, STEP)
    return SweepRow(
        length=length,
        tree=tree,
        batch_size=batch_size,
        context_tokens=None if context < 0 else _check_whole(row, context, CONTEXT[0], least=0),
        step_s=step_s,
        token_s=_read_token_s(row, batch_size) if step_s is None else None,
        tokens_per_step=_read_accept_length(row, length, own_token),
        model=next((row.cells[name] for name in MODEL if row.cells.get(name, "").lower() not in MISSING), None),
    )


def _read_length(row: Row) -> int:
    drafts, drafted = _read_number(row, (DRAFTS,), 0.0), _read_number(row, DRAFTED, 0.0)
    if drafts > 0 and drafted > 0:
        mean = drafted / drafts
        length = mean if math.isinf(mean) else round(mean)
        return _check_whole(row, length, DRAFTED[0], least=1, most=MAX_STEP_TOKENS)
    length = _read_number(row, LENGTH)
    if math.isnan(length):
        length = _read_number(row, ROOTED) - 1
    if not math.isnan(length):
        return _check_whole(row, length, LENGTH[0], least=0, most=MAX_STEP_TOKENS)
    if {CONCURRENCY, "mean_tpot_ms"} <= row.cells.keys() and not any(
        row.cells.get(name) for name in (*ACCEPT, *ACCEPTED)
    ):
        return 0  # vllm bench serve of a server that does not speculate
    raise row.error(f"expected the draft length as one of {', '.join(LENGTH)}. Got none: add the column.")


def _read_accept_length(row: Row, length: int, own_token: float) -> float | None:
    tokens = own_token + _read_number(row, ACCEPT)
    if math.isnan(tokens):
        tokens = 1 + _read_number(row, ACCEPTED)
    if math.isnan(tokens) or (length == 0 and tokens == 0):
        return None if length else 1.0
    if not 1 <= tokens <= 1 + length:
        raise row.error(
            f"expected an accept length from 1 to {1 + length}, with the target's own token. Got {tokens:g}: where it is "
            f"not counted, name the column {ACCEPTED[0]}.",
        )
    return tokens


def _read_seconds(row: Row, units: Mapping[str, float]) -> float | None:
    for name, unit_s in units.items():
        value = _read_number(row, (name,))
        if not math.isnan(value):
            return _check_positive(row, value * unit_s)
    return None


def _read_token_s(row: Row, batch_size: int) -> float:
    token_s = _read_seconds(row, PER_TOKEN)
    if token_s is not None:
        return token_s
    speed = _read_number(row, PER_SEQUENCE)
    if math.isnan(speed):
        speed = _read_number(row, OF_BATCH) / batch_size
    return 1 / _check_positive(row, speed)


def _check_positive(row: Row, value: float) -> float:
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
