"""Acceptance of single requests in llama-server's log: what a slot prints when a request ends.

    slot print_timing: … draft acceptance = 0.66237 (257 accepted / 388 generated), mean acceptance length = 3.65,
    acceptance rate per position = (0.804, 0.701, 0.629, 0.515)

Other versions write `mean len = 3.65`, and the rates below it as `acc per pos = (…)`, at -lv 4 only.
Rates are over the request's steps, which are accepted / sum of the rates, or accepted / (mean - 1).
"""

import re
from dataclasses import dataclass

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.mean_acceptance import equal_positions, geometric
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.files.fields import Fields

KIND = "llama-server log, requests"
SHORT = "shorter drafts count as rejected"
MARK = re.compile(r"draft acceptance(?: rate)? =")
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_TOTALS = re.compile(
    r"draft acceptance(?: rate)? =.{0,40}?\(\s{0,20}(\d{1,12}) accepted /\s{0,20}(\d{1,12}) generated\)"
)
_MEAN = re.compile(rf"mean (?:acceptance length|len) =\s{{0,9}}({_NUMBER})")
_RATES = re.compile(rf"(?:acceptance rate per position|acc per pos) = \(({_NUMBER}(?:, {_NUMBER}){{0,500}})\)")


@dataclass(slots=True)
class _Request:
    accepted: int
    drafted: int
    mean_tokens: float | None
    rates: tuple[float, ...] = ()

    @property
    def steps(self) -> int | None:
        """Steps that drafted; None where neither rates nor a mean above 1 tell them."""
        if self.rates:
            total = sum(self.rates)
            return round(self.accepted / total) if total else -(-self.drafted // len(self.rates))
        if self.mean_tokens is None or self.mean_tokens <= 1:
            return None
        return round(self.accepted / (self.mean_tokens - 1))

    @property
    def counts(self) -> StepCounts:
        """Steps that reached and accepted each position."""
        steps = self.steps or 0
        accepted = [min(steps, round(rate * steps)) for rate in self.rates]
        reached = [steps, *accepted[:-1]]
        positions = sum(count > 0 for count in reached)
        return StepCounts(tuple(reached[:positions]), tuple(accepted[:positions]))


def requests_by_position(file: ForeignFile) -> ImportedAcceptance | None:
    """Return the acceptance of the requests that have rates per position; None where none has."""
    requests = [each for each in _requests(file) if each.rates and each.steps]
    if not requests:
        return None
    total = Fields(file.path, {}).build("acceptance rate per position", pooled, [each.counts for each in requests])
    short = any(each.drafted < (each.steps or 0) * len(each.rates) for each in requests)
    return ImportedAcceptance(
        table=total.table,
        kind=f"{KIND}; {SHORT}" if short else KIND,
        prompts=len(requests),
        positions=sum(each.steps or 0 for each in requests),
        texts=total.texts,
    )


def requests_by_mean(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of all requests, with all positions alike.

    Requests of which nothing was accepted drafted as many tokens per step as the others.
    Raises FormatError where no request has a mean above 1.
    """
    requests = _requests(file)
    known = [(each, each.steps) for each in requests if each.steps]
    if not known:
        reason = "expected a mean length above 1 of a request. Got none: take the server's /metrics (--metrics)."
        raise file.error("draft acceptance", reason)
    drafted_per_step = sum(each.drafted for each, _ in known) / sum(steps for _, steps in known)
    steps = sum(each.drafted for each in requests) / drafted_per_step
    mean, length = 1 + sum(each.accepted for each in requests) / steps, max(1, round(drafted_per_step))
    kind = f"{KIND}; {equal_positions(length)}"
    return ImportedAcceptance(table=geometric(mean, length), kind=kind, prompts=len(requests), positions=round(steps))


def _requests(file: ForeignFile) -> list[_Request]:
    requests: list[_Request] = []
    for line in file.lines:
        if totals := _TOTALS.search(line):
            mean = _MEAN.search(line)
            requests.append(_Request(int(totals[1]), int(totals[2]), float(mean[1]) if mean else None))
        if requests and (rates := _RATES.search(line)):
            requests[-1].rates = tuple(map(float, rates[1].split(",")))
    return [each for each in requests if each.accepted <= each.drafted and each.drafted]
