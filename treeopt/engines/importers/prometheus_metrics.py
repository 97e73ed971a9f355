"""Acceptance in Prometheus counters: `/metrics` of vLLM or llama.cpp, or the response of Prometheus' API to a query.

Without counters by position, as in versions that have totals only, all positions are taken to have the same acceptance.
"""

from collections import defaultdict

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH, acceptance_from_counts, acceptance_from_totals
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.engines.prometheus import (
    ACCEPTED,
    DRAFTED,
    DRAFTS,
    MARK,
    Counter,
    is_api_response,
    read_api_response,
    read_counters,
)
from treeopt.errors import InvalidValueError

PROGRAMS = {"vllm": "vLLM", "llamacpp": "llama.cpp"}
MAX_COUNT = 1e18
AT_ONCE = 1e-3
"""Relative difference of counters that were read while a step ended."""

_Values = dict[tuple[str, int | None], float]
"""Values of one engine by counter and position."""


def read_metrics(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of all engines together.

    Raises FormatError naming the line, for a repeated counter, counters of several models or programs, and totals that
    contradict the positions.
    """
    engines: dict[tuple[tuple[str, str], ...], _Values] = defaultdict(dict)
    programs, models = set[str](), set[str]()
    try:
        for counter in read_api_response(file.json) if file.is_json else read_counters(file.lines):
            programs.add(counter.program)
            models.add(dict(counter.labels).get("model_name", ""))
            _add_counter(file, engines[counter.labels], counter)
    except InvalidValueError as error:
        raise file.error(error.field or "content", str(error)) from None
    if len(programs) > 1:
        names = " and ".join(PROGRAMS.get(program, program) for program in sorted(programs))
        raise file.error("content", f"expected the counters of one program. Got those of {names}: keep those of one.")
    file.check_one("model_name", "the counters of one model", models)
    return _build_acceptance(file, list(engines.values()), "".join(programs))


def _add_counter(file: ForeignFile, values: _Values, counter: Counter) -> None:
    if not 0 <= counter.value < MAX_COUNT:
        raise file.error(
            counter.place, f"expected a count from 0 to {MAX_COUNT:g}. Got {counter.value!s:.60}: save /metrics again."
        )
    key = (counter.name, counter.position)
    if key in values:
        raise file.error(
            counter.place,
            f"expected each counter once. Got {counter.name} twice: keep the last of several readings.",
        )
    values[key] = counter.value


def _build_acceptance(file: ForeignFile, engines: list[_Values], program: str) -> ImportedAcceptance:
    accepted_by_engine = [_accepted_by_position(values) for values in engines]
    for values, accepted in zip(engines, accepted_by_engine, strict=True):
        _check_totals(file, program, values, sum(accepted.values()))
    drafts = sum(values.get((DRAFTS, None), 0.0) for values in engines)
    positions = {position for accepted in accepted_by_engine for position in accepted}
    depth = max(positions, default=-1) + 1
    kind = f"{PROGRAMS.get(program, program)} metrics"
    drafted, total = (sum(values.get((name, None), 0.0) for values in engines) for name in (DRAFTED, ACCEPTED))
    if not positions and 0 < drafted <= MAX_LENGTH * drafts:
        return file.build("content", acceptance_from_totals, drafts, drafted, min(total, drafted), kind)
    if not drafts or not positions or len(positions) != depth:
        raise file.error(
            "content",
            f"expected {program}:spec_decode_num_drafts above 0, and {program}:spec_decode_num_accepted_tokens_per_pos "
            f"for every position from 0 on. Got {drafts:g} drafts and {len(positions)} positions: has it drafted yet?",
        )
    if drafted > drafts * depth * (1 + AT_ONCE) and not all((ACCEPTED, None) in values for values in engines):
        raise file.error(
            "content",
            f"expected counters of {drafted / drafts:.3g} positions, as many as a step drafts. Got {depth}: save all of "
            "/metrics.",
        )
    sums = [sum(accepted.get(position, 0.0) for accepted in accepted_by_engine) for position in range(depth)]
    has_shorter = any(
        values[DRAFTED, None] < values.get((DRAFTS, None), 0.0) * depth
        for values in engines
        if (DRAFTED, None) in values
    )
    return file.build("content", acceptance_from_counts, drafts, sums, kind, shorter_drafts=has_shorter)


def _accepted_by_position(values: _Values) -> dict[int, float]:
    return {position: value for (_, position), value in values.items() if position is not None}


def _check_totals(file: ForeignFile, program: str, values: _Values, accepted_in_positions: float) -> None:
    """Refuse an accepted total other than the sum over positions, and more accepted than drafted tokens."""
    drafted, accepted = values.get((DRAFTED, None)), values.get((ACCEPTED, None))
    has_positions = any(position is not None for _, position in values)
    most = max(accepted or 0.0, accepted_in_positions)
    field = f"{program}:spec_decode_num_accepted_tokens"
    if accepted is not None and has_positions and abs(accepted - accepted_in_positions) > AT_ONCE * most:
        raise file.error(
            field,
            f"expected {accepted_in_positions:g}, the sum over positions. Got {accepted:g}: save all of /metrics at one "
            "moment.",
        )
    if drafted is not None and most > drafted * (1 + AT_ONCE):
        raise file.error(
            field,
            f"expected at most {drafted:g}, the drafted ones. Got {most:g}: save all of /metrics at one moment.",
        )


METRICS = Importer(
    name="metrics",
    title="/metrics of vLLM or llama.cpp, or a response of Prometheus' /api/v1/query",
    needs="spec_decode_num_drafts and spec_decode_num_accepted_tokens_per_pos, of one moment and one model; from totals "
    "alone a mean",
    matches=lambda file: (file.is_json and is_api_response(file.json)) or bool(MARK.search(file.text)),
    read=read_metrics,
)
