"""Acceptance in counters of Prometheus: `/metrics` of vLLM or llama.cpp, or what Prometheus' API answers about them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from treeopt.engines.importers.acceptance_tables import table_of_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.prometheus import (
    ACCEPTED,
    DRAFTED,
    DRAFTS,
    MARK,
    Counter,
    CounterError,
    is_api_answer,
    read_api_answer,
    read_counters,
)
from treeopt.errors import FormatError
from treeopt.files.fields import Fields

TITLES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}
MOST = 1e18
AT_ONCE = 1e-3
"""Counters of one moment may differ by this share, where a step ended while they were read."""
SHORT = "shorter drafts count as rejected"
_Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Counters:
    """The counters of one engine."""

    totals: dict[str, float] = field(default_factory=dict)
    accepted: dict[int, float] = field(default_factory=dict)
    """By position."""


def is_metrics(file: ForeignFile) -> bool:
    """Return whether a file has a line with one of the counters, or is an answer of the API with them."""
    return (file.is_json and is_api_answer(file.json)) or MARK.search(file.text) is not None


def read_metrics(file: ForeignFile) -> Measurements:
    """Return the acceptance of all engines together.

    Raises FormatError naming the line, for a counter twice, for those of several models or programs, and for totals
    that contradict the positions.
    """
    counters = read_api_answer(file.json) if file.is_json else read_counters(file.lines)
    try:
        return Measurements(acceptance=_acceptance_of(file, counters))
    except CounterError as error:
        raise file.error(error.place, str(error)) from None


def _acceptance_of(file: ForeignFile, counters: Iterable[Counter]) -> ImportedAcceptance:
    engines: dict[_Labels, _Counters] = defaultdict(_Counters)
    programs, models = set[str](), set[str]()
    for counter in counters:
        programs.add(counter.program)
        models.add(dict(counter.labels).get("model_name", ""))
        _add(file, engines[counter.labels], counter)
    if len(programs) > 1:
        names = " and ".join(TITLES.get(each, each) for each in sorted(programs))
        raise file.error("content", f"expected the counters of one program. Got those of {names}: keep one's.")
    if len(models) > 1:
        raise file.error("model_name", f"expected the counters of one model. Got {len(models)}: keep one's.")
    return _acceptance(file.path, list(engines.values()), "".join(programs))


def _add(file: ForeignFile, engine: _Counters, counter: Counter) -> None:
    if not 0 <= counter.value < MOST:
        reason = f"expected a count from 0 to {MOST:g}. Got {counter.value!s:.60}: save /metrics anew."
        raise file.error(counter.place, reason)
    twice = f"expected each counter once. Got {counter.name} twice: keep the last of several readings."
    if counter.position is not None:
        if counter.position in engine.accepted:
            raise file.error(counter.place, twice)
        engine.accepted[counter.position] = counter.value
    elif counter.name in engine.totals:
        raise file.error(counter.place, twice)
    else:
        engine.totals[counter.name] = counter.value


def _acceptance(path: Path | str, engines: list[_Counters], program: str) -> ImportedAcceptance:
    for each in engines:
        _check_totals(path, each, program)
    drafts = sum(each.totals.get(DRAFTS, 0.0) for each in engines)
    places = range(max((max(each.accepted) + 1 for each in engines if each.accepted), default=0))
    counted = {place for each in engines for place in each.accepted}
    if not drafts or not counted or len(counted) != len(places):
        raise FormatError(
            path,
            "content",
            f"expected {program}:spec_decode_num_drafts above 0, and {program}:spec_decode_num_accepted_tokens_per_pos "
            f"for every position from 0 on. Got {drafts:g} drafts and {len(counted)} positions: has it drafted yet?",
        )
    accepted = [sum(each.accepted.get(place, 0.0) for each in engines) for place in places]
    kind = f"{TITLES.get(program, program)} metrics"
    short = any(_drafted_less(each, len(places)) for each in engines)
    return ImportedAcceptance(
        table=Fields(path, {}).build("content", table_of_counts, drafts, accepted),
        kind=f"{kind}; {SHORT}" if short else kind,
        positions=max(1, round(drafts)),
    )


def _drafted_less(counters: _Counters, length: int) -> bool:
    """Return whether some drafts are known to have been shorter than the longest."""
    drafts, tokens = counters.totals.get(DRAFTS, 0.0), counters.totals.get(DRAFTED)
    return tokens is not None and tokens < drafts * length


def _check_totals(path: Path | str, counters: _Counters, program: str) -> None:
    """Refuse more accepted tokens than drafted ones, and other accepted ones than those of the positions."""
    drafted, accepted = counters.totals.get(DRAFTED), counters.totals.get(ACCEPTED)
    counted = sum(counters.accepted.values())
    name = f"{program}:spec_decode_num_accepted_tokens"
    if accepted is not None and counters.accepted and abs(accepted - counted) > AT_ONCE * max(accepted, counted):
        reason = f"expected {counted:g}, the sum over positions. Got {accepted:g}: save all of /metrics at one moment."
        raise FormatError(path, name, reason)
    if drafted is not None and max(accepted or 0.0, counted) > drafted * (1 + AT_ONCE):
        most = max(accepted or 0.0, counted)
        reason = f"expected at most {drafted:g}, the drafted ones. Got {most:g}: save all of /metrics at one moment."
        raise FormatError(path, name, reason)
