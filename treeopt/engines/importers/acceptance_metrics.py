"""Acceptance in Prometheus text: the counters of vLLM's and llama.cpp's `/metrics`, which have the same names.

With or without the ending `_total`, of vLLM one per engine:

    vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
    vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
    vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 140.0
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 80.0
    llamacpp:spec_decode_num_drafts_total 100
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.engines.importers.acceptance_tables import table_of_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.errors import FormatError
from treeopt.files.fields import Fields
from treeopt.records.engine import parse_position

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

MARK = re.compile(r"^[ \t]{0,9}(?:vllm|llamacpp)[:_]spec_decode_num_", re.MULTILINE)
TITLES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}
MAX_LINE = 4000
"""Characters of a counter's line."""
MOST = 1e18
AT_ONCE = 1e-3
"""Counters of one moment may differ by this share, where a step ended while they were read."""
SHORT = "shorter drafts count as rejected"

_NAME = re.compile(r"(vllm|llamacpp)[:_]spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)")
_Labels = tuple[tuple[str, str], ...]
"""All labels of a series but the position."""


@dataclass(slots=True)
class _Counters:
    """The counters of one engine."""

    totals: dict[str, float] = field(default_factory=dict)
    accepted: dict[int, float] = field(default_factory=dict)
    """By position."""


def is_metrics(file: ForeignFile) -> bool:
    """Return whether a file has a line with one of the counters."""
    return MARK.search(file.text) is not None


def read_metrics(file: ForeignFile) -> Measurements:
    """Return the acceptance of all engines together.

    Raises FormatError naming the line, for a counter twice, for those of several models or programs, and for totals
    that contradict the positions.
    """
    path = file.path
    engines: dict[_Labels, _Counters] = defaultdict(_Counters)
    programs, models = set[str](), set[str]()
    for number, content in enumerate(file.lines, start=1):
        line = f"line {number}"
        if not MARK.match(content):
            continue
        sample = _sample(path, line, content)
        name = _NAME.fullmatch(sample.name.removesuffix("_total"))
        if name is None:
            continue
        labels = dict(sample.labels)
        programs.add(name[1])
        models.add(labels.get("model_name", ""))
        position = labels.pop("position", "")
        _add(path, line, engines[tuple(sorted(labels.items()))], name[2], position, _count(path, line, sample.value))
    if len(programs) > 1:
        raise FormatError(
            path, "content", "expected the counters of one program. Got vLLM's and llama.cpp's: keep one's."
        )
    if len(models) > 1:
        raise FormatError(path, "model_name", f"expected the counters of one model. Got {len(models)}: keep one's.")
    return Measurements(acceptance=_acceptance(path, list(engines.values()), "".join(programs)))


def _sample(path: Path | str, line: str, content: str) -> "Sample":
    """Return what a line says; each is parsed by itself, so that errors name it and others may be of any kind."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        if len(content) > MAX_LINE:
            raise ValueError(f"more than {MAX_LINE} characters")
        (family,) = text_string_to_metric_families(content)
    except (ValueError, IndexError) as error:
        reason = f"expected a counter of Prometheus, a name, labels and a value ({error!s:.60}). Is the line complete?"
        raise FormatError(path, line, " ".join(reason.split())) from None
    return family.samples[0]


def _add(path: Path | str, line: str, counters: _Counters, name: str, position: str, value: float) -> None:
    twice = f"expected each counter once. Got {name} twice: keep the last of several readings."
    if name == "accepted_tokens_per_pos":
        place = _position(path, line, position)
        if place in counters.accepted:
            raise FormatError(path, line, twice)
        counters.accepted[place] = value
    elif name in counters.totals:
        raise FormatError(path, line, twice)
    else:
        counters.totals[name] = value


def _acceptance(path: Path | str, engines: list[_Counters], program: str) -> ImportedAcceptance:
    for each in engines:
        _check_totals(path, each, program)
    drafts = sum(each.totals.get("drafts", 0.0) for each in engines)
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
    kind = f"{TITLES[program]} metrics"
    short = any(_drafted_less(each, len(places)) for each in engines)
    return ImportedAcceptance(
        table=Fields(path, {}).build("content", table_of_counts, drafts, accepted),
        kind=f"{kind}; {SHORT}" if short else kind,
        positions=max(1, round(drafts)),
    )


def _drafted_less(counters: _Counters, length: int) -> bool:
    """Return whether some drafts are known to have been shorter than the longest."""
    drafts, tokens = counters.totals.get("drafts", 0.0), counters.totals.get("draft_tokens")
    return tokens is not None and tokens < drafts * length


def _check_totals(path: Path | str, counters: _Counters, program: str) -> None:
    """Refuse more accepted tokens than drafted ones, and other accepted ones than those of the positions."""
    drafted, accepted = counters.totals.get("draft_tokens"), counters.totals.get("accepted_tokens")
    counted = sum(counters.accepted.values())
    name = f"{program}:spec_decode_num_accepted_tokens"
    if accepted is not None and counters.accepted and abs(accepted - counted) > AT_ONCE * max(accepted, counted):
        reason = f"expected {counted:g}, the sum over positions. Got {accepted:g}: save all of /metrics at one moment."
        raise FormatError(path, name, reason)
    if drafted is not None and max(accepted or 0.0, counted) > drafted * (1 + AT_ONCE):
        most = max(accepted or 0.0, counted)
        reason = f"expected at most {drafted:g}, the drafted ones. Got {most:g}: save all of /metrics at one moment."
        raise FormatError(path, name, reason)


def _count(path: Path | str, line: str, value: float) -> float:
    if not 0 <= value < MOST:
        raise FormatError(path, line, f"expected a count from 0 to {MOST:g}. Got {value!s:.60}: save /metrics anew.")
    return float(value)


def _position(path: Path | str, line: str, text: str) -> int:
    try:
        return parse_position(text)
    except ValueError:
        raise FormatError(path, line, f"position: expected a whole number from 0. Got {text!r:.60}.") from None
