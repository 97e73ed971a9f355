"""Acceptance in vLLM's log: a line every ten seconds, of what was drafted in them.

    SpecDecoding metrics: Mean acceptance length: 1.93, …, Accepted: 1300 tokens, Drafted: 1400 tokens,
    Per-position acceptance rate: 0.929, …

All lines count, each with its drafts: the drafted tokens over the positions.
"""

import re
from itertools import accumulate
from typing import NamedTuple

from treeopt.engines.importers.acceptance_tables import table_of_rates
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.files.fields import Fields
from treeopt.records.engine import MAX_POSITIONS

LOG_MARK = "Per-position acceptance rate:"

_NUMBER = r"\d{1,15}(?:\.\d{1,17})?"
_RATES = re.compile(rf"{LOG_MARK}\s{{0,9}}({_NUMBER}(?:,\s{{0,9}}{_NUMBER}){{0,{MAX_POSITIONS}}})")
_DRAFTED = re.compile(r"Drafted: (\d{1,15}) tokens")


class _Interval(NamedTuple):
    rates: tuple[float, ...]
    drafts: int | None
    """None where the line has no drafted tokens."""


def is_vllm_log(file: ForeignFile) -> bool:
    """Return whether a file is text, no JSON, with a line of rates."""
    return LOG_MARK in file.text and not file.is_json


def read_vllm_log(file: ForeignFile) -> Measurements:
    """Return the acceptance of all lines together; raises FormatError where none has rates."""
    intervals = [each for line in file.lines if (each := _interval(line)) is not None]
    if not intervals:
        raise file.error("content", f"expected numbers with commas between after {LOG_MARK!r}. Got none.")
    counted = [(each.rates, each.drafts) for each in intervals if each.drafts]
    if not counted:
        return Measurements(acceptance=_mean(file, intervals))
    total = Fields(file.path, {}).build(
        "content", pooled, [_counts(rates, drafts) for rates, drafts in counted], one_sequence=False
    )
    lines = f"{len(counted)} line{'s' * (len(counted) > 1)}"
    acceptance = ImportedAcceptance(
        table=total.table,
        kind=f"vLLM log, {lines}",
        positions=sum(drafts for _, drafts in counted),
        texts=total.texts,
    )
    return Measurements(acceptance=acceptance)


def _interval(line: str) -> _Interval | None:
    found = _RATES.search(line)
    if found is None:
        return None
    rates = tuple(float(rate) for rate in found[1].split(","))
    drafted = _DRAFTED.search(line)
    return _Interval(rates, None if drafted is None else int(drafted[1]) // len(rates))


def _counts(rates: tuple[float, ...], drafts: int) -> StepCounts:
    """Return the counts of one line; rates are rounded, and no position is accepted more often than the one before."""
    accepted = list(accumulate((min(drafts, round(rate * drafts)) for rate in rates), min))
    reached = [drafts, *accepted[:-1]]
    positions = sum(count > 0 for count in reached)
    return StepCounts(tuple(reached[:positions]), tuple(accepted[:positions]))


def _mean(file: ForeignFile, intervals: list[_Interval]) -> ImportedAcceptance:
    """Return the mean rates of lines that have no counts, those with as many positions as the last."""
    rows = [each.rates for each in intervals if len(each.rates) == len(intervals[-1].rates)]
    rates = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    table = Fields(file.path, {}).build("content", table_of_rates, rates)
    return ImportedAcceptance(table=table, kind=f"vLLM log, mean of {len(rows)} lines without counts")
