"""Sweeps over the draft length: rows of speed and accept length, as CSV or JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import MAX_S, MIN_S, SWEEP, Importer, SweepRow
from treeopt.engines.importers.table_rows import (
    Row,
    Rows,
    join_words,
    parse_number,
    read_header,
    read_rows,
    split_words,
)

WORDS = {
    **dict.fromkeys(("tok", "toks", "token"), "tokens"),
    **dict.fromkeys(("sec", "second", "seconds"), "s"),
    **dict.fromkeys(("acc", "acceptance"), "accept"),
    **dict.fromkeys(("mean", "avg", "average", "output", "decode", "gen", "generation"), ""),
    "msec": "ms",
    "len": "length",
}
"""Words of names that mean another, or nothing."""


def unify_name(name: str) -> str:
    """Return a column's name with one word for each meaning.

    >>> unify_name("Output throughput (tok/s)"), unify_name("mean_acc_len")
    ('throughput_tokens_per_s', 'accept_length')
    """
    words = (WORDS.get(word, word) for word in split_words(name.replace("/", " per ")))
    return "_".join(filter(None, words)) or name


def _unify_names(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(unify_name, names)))


LENGTH = _unify_names(
    "k",
    "num_speculative_tokens",
    "num_spec_tokens",
    "draft_length",
    "gamma",
    "spec_len",
    "spec_tokens",
    "speculative_tokens",
    "steps",
    "num_steps",
    "speculative_num_steps",
    "speculative_config_num_speculative_tokens",
    "speculative_length",
    "speculation_length",
    "n_max",
    "draft_n_max",
    "spec_draft_n_max",
    "draft_max",
    "draft_tokens",
)
ROOTED = _unify_names("num_draft_tokens", "speculative_num_draft_tokens")
"""Includes the root, as in SGLang."""
CONCURRENCY = "max_concurrency"
"""Null in results of vLLM's and SGLang's benchmarks without a limit; SGLang's `concurrency` is a mean."""
BATCH = ("batch", "batch_size", "bs", "bsz", "concurrency")
PROMPTS = ("completed", "num_prompts")
"""Requests of a benchmark, those that succeeded if it tells."""
CONTEXT = _unify_names("context", "context_tokens", "context_len", "ctx")
MODEL = ("model_id", "model", "target")
TOP_K = ("topk", "top_k", "eagle_topk", "speculative_eagle_topk")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
STEP = {"step_time": 1.0} | {
    name.format(unit): unit_s
    for unit, unit_s in UNITS.items()
    for name in ("step_time_{}", "step_{}", "step_latency_{}", "time_per_step_{}", "{}_per_step")
}
PER_TOKEN = {
    unify_name(name.format(unit)): unit_s
    for unit, unit_s in UNITS.items()
    for name in ("tpot_{}", "time_per_token_{}", "{}_per_token")
}
OF_BATCH = _unify_names(
    *("tokens_per_s", "tok_s", "t_per_s", "tps", "throughput", "throughput_tok_s", "throughput_tok_per_s"),
    *("throughput_tps", "output_token_throughput", "output_token_throughput_tok_per_s", "tok_s_total", "total_tps"),
)
PER_SEQUENCE = (
    *("tokens_per_s_per_user", "tokens_s_per_user", "tps_per_user", "per_user"),
    *("tokens_per_s_per_request", "tokens_per_s_per_req", "tokens_per_s_per_sequence", "tokens_per_s_per_seq"),
)
ACCEPT = _unify_names(
    "accept_length", "spec_decode_acceptance_length", "accepted_length", "tokens_per_step", "al", "tau", "τ", "mat"
)
"""Including the target's own token."""
ACCEPTED = _unify_names("accepted_tokens", "accepted_per_step", "accepted_tokens_per_step")
"""Excluding it."""
RATE = _unify_names("acceptance_rate", "draft_acceptance_rate", "spec_decode_acceptance_rate")
"""Accepted of the drafted tokens, as a share or in per cent."""
SPEEDS = (*STEP, *PER_TOKEN, *OF_BATCH, *PER_SEQUENCE)
DRAFTS = unify_name("spec_decode_num_drafts")
DRAFTED = _unify_names("spec_decode_num_draft_tokens", "spec_decode_draft_tokens")
COLUMNS = frozenset(
    (
        *(*LENGTH, *ROOTED, *BATCH, CONCURRENCY, *CONTEXT, *TOP_K, *SPEEDS, *ACCEPT, *ACCEPTED, *RATE),
        *(DRAFTS, *DRAFTED, *PROMPTS),
    )
)
SERIES = "_benchmark_name"
"""Name that `vllm bench sweep` gives to settings that have columns of their own."""
MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
"""Cells without a value, in lower case."""
PLAIN = ("none", "off", "no", "plain", "baseline", "vanilla")
"""Cells of plain decoding in columns of a draft length or a drafting method, in lower case."""
MAX_WHOLE = 10_000_000


def is_sweep(file: ForeignFile) -> bool:
    """Return whether rows have a speed, and a draft length or what vLLM's benchmark writes instead."""
    names = set(map(unify_name, read_header(file)))
    return not names.isdisjoint(SPEEDS) and not names.isdisjoint((*LENGTH, *ROOTED, *ACCEPTED, CONCURRENCY))


def read_sweep(file: ForeignFile) -> tuple[SweepRow, ...]:
    """Return the rows; raises FormatError naming the row, and for columns that look like several settings."""
    table = _read_rows(file)
    _check_acceptance(table)
    lengths = [_read_length(row) for row in table.rows]
    own_token = _missing_own_token(table.rows, lengths)
    rate_unit = _find_rate_unit(table.rows)
    rows = [_build_row(row, length, own_token, rate_unit) for row, length in zip(table.rows, lengths, strict=True)]
    table.check_constant(COLUMNS, [(row.length, row.tree, row.batch_size, row.context_tokens) for row in rows])
    return tuple(rows)


def _read_rows(file: ForeignFile) -> Rows:
    """Return the rows by unified column names; cells without a value are empty.

    Raises FormatError for two columns of one known name.
    """
    table = read_rows(file)
    titles: dict[str, str] = {}
    for title in table.names:
        name = unify_name(title)
        name = name if name in COLUMNS else join_words(title)
        if name in titles and name in COLUMNS:
            raise file.error(
                table.header_line, f"expected one column of {titles[name]!r:.40}. Got {title!r:.40} too: remove one."
            )
        if title != SERIES:
            titles[name] = title
    rows = [
        replace(
            row,
            cells={name: _clean_cell(name, row.cells[title], title, row.decimal) for name, title in titles.items()},
            titles=titles,
        )
        for row in table.rows
    ]
    return Rows(table.header_line, list(titles), rows)


def _clean_cell(name: str, cell: str, title: str, decimal: str) -> str:
    """Return a cell; empty without a value, the length 0 for words that mean plain decoding, rates in per cent as shares."""
    text = cell.lower()
    if text in PLAIN and name in LENGTH:
        return "0"
    if text in MISSING or (text in PLAIN and name not in COLUMNS):
        return ""
    if name in RATE and ("%" in title + cell or {"pct", "percent"} & set(split_words(title))):
        return f"{parse_number(cell.removesuffix('%').rstrip(), decimal) / 100:.12g}"
    return cell


def _check_acceptance(table: Rows) -> None:
    """Refuse a column of acceptance with an unknown name, without which acceptance would be estimated from speeds."""
    if not {*ACCEPT, *ACCEPTED, *RATE}.isdisjoint(table.names):
        return
    unknown = next((name for name in table.names if any(map(_is_acceptance, split_words(name)))), None)
    if unknown is not None:
        raise table.rows[0].file.error(
            table.header_line,
            f"unknown column {unknown!r:.40}. Rename it to accept_length if it is tokens per step, the target's own token "
            "included, to accepted_tokens if it is draft tokens per step, or to acceptance_rate if it is a share of the drafted ones.",
        )


def _is_acceptance(word: str) -> bool:
    return WORDS.get(word, word).startswith("accept")


def _find_rate_unit(rows: Sequence[Row]) -> float:
    """Return the unit of acceptance rates without a sign of per cent: per cent if one of them is above 1."""
    return 0.01 if any(_read_number(row, RATE) > 1 for row in rows) else 1.0


def _read_number(row: Row, names: Iterable[str], default: float = math.nan) -> float:
    """Return the number in the first of the columns that has one."""
    name = next((name for name in names if row.cells.get(name)), None)
    return default if name is None else row.number(name)


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
            "expected an accept length of 1 for plain decoding, the target's own token. Got 0: write 1, or name the column "
            "accepted_tokens if the token is not counted in the other rows either."
        )
    return 1.0


def _build_row(row: Row, length: int, own_token: float, rate_unit: float) -> SweepRow:
    concurrent = _read_concurrent(row)
    if math.isnan(concurrent) and CONCURRENCY in row.cells:
        raise row.error(
            f"{CONCURRENCY}: expected the number of concurrent requests. Got none: run the benchmark with --max-concurrency."
        )
    batch_size = _check_whole(row, 1.0 if math.isnan(concurrent) else concurrent, "batch", least=1)
    prompts = _read_number(row, PROMPTS)
    if prompts < batch_size:
        raise row.error(
            f"{next(name for name in PROMPTS if row.cells.get(name))}: expected at least {batch_size}, as many as run together. "
            f"Got {prompts:g}: benchmark more prompts."
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
        tokens_per_step=_read_accept_length(row, length, own_token, rate_unit),
        model=next((row.cells[name] for name in MODEL if row.cells.get(name)), None),
    )


def _read_concurrent(row: Row) -> float:
    """Return the requests that run together; NaN if unknown."""
    if CONCURRENCY in row.cells:
        return _read_number(row, (CONCURRENCY,))
    numbers = {row.number(name) for name in BATCH if row.cells.get(name)}
    if len(numbers) > 1:
        raise row.error(
            f"expected one batch size. Got {' and '.join(f'{number:g}' for number in sorted(numbers))}: keep the column of the "
            "requests that run together."
        )
    return numbers.pop() if numbers else math.nan


def _read_length(row: Row) -> int:
    drafts, drafted = _read_number(row, (DRAFTS,), 0.0), _read_number(row, DRAFTED, 0.0)
    if drafts > 0 and drafted > 0:
        mean = drafted / drafts
        length = mean if math.isinf(mean) else round(mean)
        return _check_whole(row, length, DRAFTED[0], least=1, most=MAX_LENGTH)
    length = _read_number(row, LENGTH)
    rooted = _read_number(row, ROOTED)
    if length >= 0 and rooted != length + 1 and not math.isnan(rooted) and not _read_number(row, TOP_K, 1.0) > 1:
        raise row.error(
            f"expected num_draft_tokens of {length + 1:g}, the draft length and the root. Got {rooted:g}: keep the column "
            "of the draft length."
        )
    if math.isnan(length):
        if rooted == 0:
            raise row.error(
                "num_draft_tokens: expected at least 1, because it includes the root, as in SGLang. Got 0: name the column "
                "num_speculative_tokens if it does not."
            )
        length = rooted - 1
    if not math.isnan(length):
        return _check_whole(row, length, LENGTH[0], least=0, most=MAX_LENGTH)
    if {CONCURRENCY, "tpot_ms"} <= row.cells.keys() and not any(row.cells.get(name) for name in (*ACCEPT, *ACCEPTED)):
        return 0  # vllm bench serve of a server that does not speculate
    raise row.error(
        "expected the draft length, such as k or num_speculative_tokens. Got none: add the column, 0 for plain decoding."
    )


def _read_accept_length(row: Row, length: int, own_token: float, rate_unit: float) -> float | None:
    tokens = own_token + _read_number(row, ACCEPT)
    if math.isnan(tokens):
        tokens = 1 + _read_number(row, ACCEPTED)
    if math.isnan(tokens):
        tokens = 1 + length * rate_unit * _read_number(row, RATE)
    if math.isnan(tokens) or (length == 0 and tokens == 0):
        return None if length else 1.0
    if not 1 <= tokens <= 1 + length:
        raise row.error(
            f"expected an accept length from 1 to {1 + length}, with the target's own token. Got {tokens:g}: where it is "
            "not counted, name the column accepted_tokens.",
        )
    return tokens


def _read_seconds(row: Row, units: Mapping[str, float]) -> float | None:
    name = next((name for name in units if row.cells.get(name)), None)
    return None if name is None else _check_seconds(row, row.number(name) * units[name])


def _read_token_s(row: Row, batch_size: int) -> float:
    token_s = _read_seconds(row, PER_TOKEN)
    if token_s is not None:
        return token_s
    speed = _read_number(row, PER_SEQUENCE)
    if math.isnan(speed):
        speed = _read_number(row, OF_BATCH) / batch_size
    if math.isnan(speed):
        raise row.error("expected a speed, such as tokens_per_second or step_time_ms. Got none: remove the line.")
    if not speed > 0:
        raise row.error(f"expected a speed above 0. Got {speed:g}: remove the line.")
    return _check_seconds(row, 1 / speed)


def _check_seconds(row: Row, seconds: float) -> float:
    if not MIN_S <= seconds <= MAX_S:
        raise row.error(
            f"expected {MIN_S:g} to {MAX_S:g} seconds of a step or token. Got {seconds:g}: is it another unit, or a failed run?"
        )
    return seconds


SWEEP_ROWS = Importer(
    name="sweep",
    title="speed by draft length (CSV, JSON, JSON Lines)",
    contains=(SWEEP,),
    needs="columns of a draft length (k), a speed (tokens_per_second, step_time_ms) and an accept_length; plain decoding is "
    "length 0",
    matches=is_sweep,
    read=read_sweep,
)
