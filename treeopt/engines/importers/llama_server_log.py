"""Acceptance and drafting time in llama-server's log.

    statistics draft-simple: #calls(b,g,a) = 1 100 100, #gen drafts = 100, …, #gen tokens = 300, #acc tokens = 150,
    #acc rate/pos = (0.750, 0.500, 0.250), dur(b,g,a) = 0.005, 300.0, 0.1 ms

A line after every request counts since the server started: of each way of drafting the last one is taken, or the last
before each restart. Generating takes the second duration. They are printed at -lv 4 only in newer versions.
Acceptance is that of the requests where they have rates per position and one way of drafting only, else that of these lines.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.engines.importers.acceptance_tables import table_of_counts
from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.imported_latency import ImportedLatency, curve
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.llama_server_requests import MARK as REQUEST_MARK
from treeopt.engines.importers.llama_server_requests import requests_by_mean, requests_by_position
from treeopt.engines.importers.mean_acceptance import equal_positions, geometric
from treeopt.files.fields import Fields

KIND = "llama-server log"
MARK = re.compile(r"statistics\s{1,20}[\w-]{1,40}: #calls")
_LINE = re.compile(r"statistics\s{1,20}([\w-]{1,40}): #calls(.{0,4000})")
_COUNT = r"\s{{0,9}}=\s{{0,20}}(\d{{1,15}})"
_NUMBER = r"\d{1,15}(?:\.\d{1,9})?"
_POSITIONS = re.compile(rf"#acc rate/pos = \(({_NUMBER}(?:, {_NUMBER}){{0,500}})\)")
_DURATIONS = re.compile(rf"dur\(b,g,a\) = {_NUMBER},\s{{0,20}}({_NUMBER}),")


@dataclass(frozen=True, slots=True)
class _Statistics:
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    rates: tuple[float, ...]
    """By position; empty where the line has none."""
    draft_ms: float | None


def is_llama_server_log(file: ForeignFile) -> bool:
    """Return whether a text, no JSON, has lines of statistics or of requests that drafted."""
    return any(mark.search(file.text) for mark in (MARK, REQUEST_MARK)) and not file.is_json


def read_llama_server_log(file: ForeignFile) -> Measurements:
    """Return the acceptance, and seconds per drafted token, of the way of drafting that drafted most."""
    by_method: dict[str, list[_Statistics]] = {}
    for method, content in _LINE.findall(file.text):
        if (statistics := _statistics(content)) is not None:
            runs = by_method.setdefault(method, [])
            if runs and statistics.drafts >= runs[-1].drafts:
                runs.pop()  # counted since the start, so the later line holds the earlier one
            runs.append(statistics)
    method, runs = max(by_method.items(), key=lambda item: sum(each.drafts for each in item[1]), default=("", []))
    requests = requests_by_position(file) if len(by_method) < 2 else None
    if not by_method and REQUEST_MARK.search(file.text):
        return Measurements(acceptance=requests or requests_by_mean(file))
    drafted = sum(each.drafted_tokens for each in runs)
    if not drafted:
        raise file.error("statistics", "expected #gen drafts above 0. Got none: has the server drafted yet?")
    acceptance = requests or _acceptance(file, method, runs)
    return Measurements(acceptance=acceptance, latencies=_draft_latency(file, runs, drafted))


def _acceptance(file: ForeignFile, method: str, runs: Sequence[_Statistics]) -> ImportedAcceptance:
    drafts, fields = sum(each.drafts for each in runs), Fields(file.path, {})
    positions = min(len(each.rates) for each in runs)
    kind = f"{KIND}, {method}"
    if positions:
        accepted = [float(sum(round(each.rates[place] * each.drafts) for each in runs)) for place in range(positions)]
        table = fields.build("#acc rate/pos", table_of_counts, float(drafts), accepted)
        return ImportedAcceptance(table=table, kind=kind, positions=drafts)
    mean = 1 + sum(each.accepted_tokens for each in runs) / drafts
    length = max(1, round(sum(each.drafted_tokens for each in runs) / drafts))
    return ImportedAcceptance(
        table=geometric(mean, length), kind=f"{kind}; {equal_positions(length)}", positions=drafts
    )


def _draft_latency(file: ForeignFile, runs: Sequence[_Statistics], drafted: int) -> tuple[ImportedLatency, ...]:
    """Return the seconds of drafting one token, where every line has them."""
    durations_ms = [each.draft_ms for each in runs if each.draft_ms]
    if len(durations_ms) < len(runs):
        return ()
    per_token_s = sum(durations_ms) / drafted * 1e-3
    draft = Fields(file.path, {}).build("dur(b,g,a)", curve, {1: [per_token_s]})
    return (ImportedLatency(context_tokens=None, batch_size=1, draft=draft, source=source_text(file.path, KIND)),)


def _statistics(content: str) -> _Statistics | None:
    def count(name: str) -> int:
        found = re.search(name + _COUNT.format(), content)
        return int(found[1]) if found else 0

    rates, durations = _POSITIONS.search(content), _DURATIONS.search(content)
    drafts, drafted = count("#gen drafts"), count("#gen tokens")
    if not drafts:
        return None
    return _Statistics(
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=min(count("#acc tokens"), drafted),
        rates=tuple(float(each) for each in rates[1].split(",")) if rates else (),
        draft_ms=float(durations[1]) if durations else None,
    )
