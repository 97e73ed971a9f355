"""Acceptance and drafting time in the log of llama.cpp's llama-server, and acceptance in its responses.

When a request ends, its slot prints

    slot print_timing: … draft acceptance = 0.66237 (257 accepted / 388 generated), mean acceptance length = 3.65,
    acceptance rate per position = (0.804, 0.701, 0.629, 0.515)

Other versions print `mean len = 3.65`, and the rates on the next line as `acc per pos = (…)`, at -lv 4 only. Rates are
over the request's steps, which are accepted / sum of the rates, or accepted / (mean - 1). Older versions print neither,
and before it the generated tokens as `eval time = 1234.00 ms / 100 tokens`, of which all but the first and the accepted
ones took a step.

Each drafting method then prints its totals since the start of the server, in newer versions at -lv 4 only:

    statistics draft-simple: #calls(b,g,a) = 1 100 100, #gen drafts = 100, …, #gen tokens = 300, #acc tokens = 150,
    #acc rate/pos = (0.750, 0.500, 0.250), dur(b,g,a) = 0.005, 300.0, 0.1 ms

Only the last line of each method before a restart counts. The second duration is that of drafting.

A response of `/completion` or `/v1/chat/completions` has totals in `timings`; without the number of steps, they are the
tokens after the first one that were not drafted:

    draft_n, draft_n_accepted: drafted and accepted tokens; missing if none was drafted
    predicted_n: tokens, the first of which comes from prefill
    draft_n_verif_steps, or draft_rounds of mlx-vlm: steps; missing in most versions
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.engines.importers.acceptance_tables import (
    RATE_ROUNDING,
    StepCounts,
    acceptance_from_counts,
    acceptance_from_totals,
    pool_steps,
)
from treeopt.engines.importers.foreign_file import NUMBER, ForeignFile, JsonObject
from treeopt.engines.importers.importer import (
    ACCEPTANCE,
    DRAFT_TIMES,
    ImportedAcceptance,
    ImportedLatency,
    Importer,
    build_latency,
)
from treeopt.files.fields import Fields

KIND = "llama-server log"
_RATES = rf"\(({NUMBER}(?:, {NUMBER}){{0,500}})\)"
_STATISTICS_MARK = re.compile(r"statistics\s{1,20}[\w-]{1,40}: #calls")
_STATISTICS = re.compile(r"statistics\s{1,20}([\w-]{1,40}): #calls(.{0,4000})")
_COUNT = r"\s{0,9}=\s{0,20}(\d{1,15})"
_STATISTICS_RATES = re.compile(rf"#acc rate/pos = {_RATES}")
MISSING_SHARE = 0.05
"""Of the accepted tokens, which rates may lack."""
_DURATIONS = re.compile(rf"dur\(b,g,a\) = {NUMBER},\s{{0,20}}({NUMBER}),")

REQUESTS_KIND = "llama-server log, requests"
_REQUEST_MARK = re.compile(r"draft acceptance(?: rate)? =")
_REQUEST = re.compile(
    r"draft acceptance(?: rate)? =.{0,40}?\(\s{0,20}(\d{1,12}) accepted /\s{0,20}(\d{1,12}) generated\)"
)
_REQUEST_TOKENS = re.compile(rf"(?<!prompt )eval time =\s{{0,20}}{NUMBER} ms /\s{{0,20}}(\d{{1,12}}) tokens")
_REQUEST_MEAN = re.compile(rf"mean (?:acceptance length|len) =\s{{0,9}}({NUMBER})")
_REQUEST_RATES = re.compile(rf"(?:acceptance rate per position|acc per pos) = {_RATES}")


RESPONSES_KIND = "llama-server responses"
TIMINGS, TOKENS, DRAFTED, ACCEPTED = "timings", "predicted_n", "draft_n", "draft_n_accepted"
STEPS = ("draft_n_verif_steps", "draft_rounds")


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Totals of one drafting method."""

    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    rates: tuple[float, ...]
    """By position; empty if the line has none."""
    draft_ms: float | None


@dataclass(slots=True)
class _Request:
    accepted: int
    drafted: int
    mean_tokens: float | None
    tokens: int | None
    """Generated tokens; None if the log has none before the request."""
    rates: tuple[float, ...] = ()
    """By position; empty if the log has none."""

    @property
    def steps(self) -> int | None:
        """Steps that drafted; None if they follow neither from rates, nor from a mean above 1, nor from the tokens."""
        if self.rates:
            total = sum(self.rates)
            return round(self.accepted / total) if total else -(-self.drafted // len(self.rates))
        if self.mean_tokens is not None and self.mean_tokens > 1:
            return round(self.accepted / (self.mean_tokens - 1))
        return None if self.tokens is None else max(1, self.tokens - 1 - self.accepted)


def read_log(file: ForeignFile) -> ImportedAcceptance | tuple[ImportedLatency, ...]:
    """Return the acceptance, or the seconds per drafted token of the method that drafted most.

    With one method and rates per position of requests the acceptance is that of the requests, otherwise that of the
    totals, or if there are none the mean of the requests.
    """
    by_method = _read_statistics(file)
    method, runs = max(by_method.items(), key=lambda item: sum(run.drafts for run in item[1]), default=("", []))
    requests = _read_requests(file)
    acceptance = _pool_requests(file, requests) if len(by_method) < 2 else None
    latencies: tuple[ImportedLatency, ...] = ()
    if not by_method and _REQUEST_MARK.search(file.log):
        acceptance = acceptance or _average_requests(file, requests)
    else:
        drafted = sum(run.drafted_tokens for run in runs)
        if not drafted:
            raise file.error("statistics", "expected #gen drafts above 0. Got none: has the server drafted yet?")
        acceptance = acceptance or _sum_runs(file, method, runs)
        latencies = _build_draft_latency(file, runs, drafted)
    return acceptance if file.part == ACCEPTANCE else latencies


def _read_statistics(file: ForeignFile) -> dict[str, list[_Statistics]]:
    """Return the totals of each run of the server by drafting method."""
    by_method: dict[str, list[_Statistics]] = {}
    for method, line in _STATISTICS.findall(file.log):
        drafts = _read_count("#gen drafts", line)
        if not drafts:
            continue
        rates, durations = _STATISTICS_RATES.search(line), _DURATIONS.search(line)
        drafted = _read_count("#gen tokens", line)
        accepted = min(_read_count("#acc tokens", line), drafted)
        runs = by_method.setdefault(method, [])
        if runs and drafts >= runs[-1].drafts:
            runs.pop()  # the later totals include it
        runs.append(
            _Statistics(
                drafts=drafts,
                drafted_tokens=drafted,
                accepted_tokens=accepted,
                rates=_check_rates(file, tuple(map(float, rates[1].split(","))), accepted / drafts) if rates else (),
                draft_ms=float(durations[1]) if durations else None,
            )
        )
    return by_method


def _check_rates(file: ForeignFile, rates: tuple[float, ...], mean: float) -> tuple[float, ...]:
    """Return the rates by position; raises FormatError if they are clearly fewer than the mean accepted tokens."""
    if sum(rates) < (1 - MISSING_SHARE) * mean - RATE_ROUNDING * len(rates):
        raise file.error(
            "#acc rate/pos",
            f"expected rates whose sum is about {mean:.3f}, the accepted tokens of a draft. Got {sum(rates):.3f}: is the line "
            "complete?",
        )
    return rates


def _read_count(name: str, line: str) -> int:
    match = re.search(name + _COUNT, line)
    return int(match[1]) if match else 0


def _sum_runs(file: ForeignFile, method: str, runs: Sequence[_Statistics]) -> ImportedAcceptance:
    drafts = sum(run.drafts for run in runs)
    depth = min(len(run.rates) for run in runs)
    kind = f"{KIND}, {method}"
    if depth:
        accepted = [float(sum(round(run.rates[position] * run.drafts) for run in runs)) for position in range(depth)]
        return file.build("#acc rate/pos", acceptance_from_counts, float(drafts), accepted, kind)
    drafted, total = sum(run.drafted_tokens for run in runs), sum(run.accepted_tokens for run in runs)
    return file.build("#gen tokens", acceptance_from_totals, drafts, drafted, total, kind)


def _build_draft_latency(file: ForeignFile, runs: Sequence[_Statistics], drafted: int) -> tuple[ImportedLatency, ...]:
    """Return the seconds of drafting one token; none if a run does not have them."""
    durations_ms = [run.draft_ms for run in runs if run.draft_ms]
    if len(durations_ms) < len(runs):
        return ()
    samples_s = {1: [sum(durations_ms) / drafted * 1e-3]}
    return (build_latency(file, "dur(b,g,a)", KIND, samples_s, drafts=True),)


def _read_requests(file: ForeignFile) -> list[_Request]:
    requests: list[_Request] = []
    tokens: int | None = None
    for line in file.log.split("\n"):
        if generated := _REQUEST_TOKENS.search(line):
            tokens = int(generated[1])
        if totals := _REQUEST.search(line):
            mean = _REQUEST_MEAN.search(line)
            requests.append(_Request(int(totals[1]), int(totals[2]), float(mean[1]) if mean else None, tokens))
            tokens = None
        if requests and (rates := _REQUEST_RATES.search(line)):
            requests[-1].rates = tuple(map(float, rates[1].split(",")))
    return [request for request in requests if request.accepted <= request.drafted and request.drafted]


def _pool_requests(file: ForeignFile, requests: Sequence[_Request]) -> ImportedAcceptance | None:
    """Return the acceptance of the requests that have rates per position; None if none has."""
    counted = [(request, steps) for request in requests if request.rates and (steps := request.steps)]
    if not counted:
        return None
    field = "acceptance rate per position"
    has_shorter = any(request.drafted < steps * len(request.rates) for request, steps in counted)
    return file.build(
        field,
        pool_steps,
        [file.build(field, StepCounts.from_rates, request.rates, steps) for request, steps in counted],
        REQUESTS_KIND,
        shorter_drafts=has_shorter,
    )


def _average_requests(file: ForeignFile, requests: Sequence[_Request]) -> ImportedAcceptance:
    """Return the mean acceptance of all requests.

    Requests of an unknown number of steps are taken to have drafted as many tokens per step as the others.
    Raises FormatError if no request has a known number.
    """
    counted = [(request, steps) for request in requests if (steps := request.steps)]
    if not counted:
        raise file.error(
            "draft acceptance",
            "expected a mean length above 1, or the eval time, of a request. Got none: take the server's /metrics (--metrics).",
        )
    drafted_per_step = sum(request.drafted for request, _ in counted) / sum(steps for _, steps in counted)
    drafted, accepted = sum(request.drafted for request in requests), sum(request.accepted for request in requests)
    drafts = drafted / drafted_per_step
    return file.build(
        "draft acceptance", acceptance_from_totals, drafts, drafted, accepted, REQUESTS_KIND, prompts=len(requests)
    )


def read_responses(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of all responses that drafted; raises FormatError for chunks of a stream."""
    steps = drafted = accepted = prompts = 0
    for response in filter(_has_timings, file.objects):
        if response.content.get("stop") is False or str(response.content.get("object", "")).endswith("chunk"):
            raise file.error(
                response.place or "content",
                "expected whole responses. Got a chunk of a stream: request without stream.",
            )
        timings = response.inner(TIMINGS)
        if DRAFTED in timings:
            drafted += timings.integer(DRAFTED, least=0)
            accepted_now = timings.integer(ACCEPTED, least=0)
            accepted += accepted_now
            steps += _count_steps(timings, accepted_now)
            prompts += 1
    if not drafted:
        raise file.error(TIMINGS, f"expected {DRAFTED} of at least one response. Got none: does the server draft?")
    file.check_one("model", "the responses of one model", [response.content.get("model") for response in file.objects])
    return file.build(TIMINGS, acceptance_from_totals, steps, drafted, accepted, RESPONSES_KIND, prompts=prompts)


def _has_timings(response: JsonObject) -> bool:
    timings = response.content.get(TIMINGS)
    return isinstance(timings, dict) and TOKENS in timings


def _count_steps(timings: Fields, accepted: int) -> int:
    for name in STEPS:
        if name in timings:
            return timings.integer(name, least=0)
    tokens = timings.integer(TOKENS, least=0)
    if accepted >= tokens:
        raise timings.error(
            TOKENS,
            f"expected more than the {accepted} accepted tokens. Got {tokens}: the number of steps is unknown, take the "
            "server's log or /metrics.",
        )
    return max(1, tokens - 1 - accepted)  # the last step may be cut off


LOG = Importer(
    name="llama-server-log",
    title="llama-server's log",
    contains=(ACCEPTANCE, DRAFT_TIMES),
    needs="lines with draft acceptance, or with statistics of drafts (-lv 4), which have seconds of drafting too",
    matches=lambda file: any(mark.search(file.log) for mark in (_STATISTICS_MARK, _REQUEST_MARK)),
    read=read_log,
)
RESPONSES = Importer(
    name="llama-server-responses",
    title="responses of llama-server",
    needs="timings with draft_n and draft_n_accepted; all positions count as equal",
    matches=lambda file: any(map(_has_timings, file.objects)),
    read=read_responses,
)
