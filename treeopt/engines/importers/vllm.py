"""Acceptance that vLLM reports of a server: its log, and results that `vllm bench serve` saves or prints.

The log has a line every ten seconds, of the drafts since the last one:

    SpecDecoding metrics: Mean acceptance length: 1.93, …, Accepted: 1300 tokens, Drafted: 1400 tokens,
    Per-position acceptance rate: 0.929, …

The benchmark counts its own window. With --append-result its file has a line for every run:

    spec_decode_num_drafts: steps that drafted; missing in servers that do not count them
    spec_decode_draft_tokens, spec_decode_accepted_tokens: drafted and accepted tokens
    spec_decode_per_position_acceptance_rates: the share of all drafts that accepted the token at each position

What it prints has the same numbers under other names, rates in per cent, under a heading `Serving Benchmark Result`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from treeopt.engines.importers.acceptance_tables import (
    RATE_ROUNDING,
    StepCounts,
    acceptance_from_rates,
    check_rates,
    pool_steps,
)
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, NUMBER, ForeignFile, check_equal
from treeopt.engines.importers.importer import ACCEPTANCE, SWEEP, ImportedAcceptance, Importer, SweepRow
from treeopt.engines.importers.sweep import read_sweep
from treeopt.files.fields import Fields

LOG_MARK = "Per-position acceptance rate:"
_LOG_RATES = re.compile(rf"{LOG_MARK}\s{{0,9}}({NUMBER}(?:,\s{{0,9}}{NUMBER}){{0,{MAX_STEP_TOKENS}}})")
_LOG_ACCEPTED, _LOG_DRAFTED = (re.compile(rf"{name}: (\d{{1,15}}) tokens") for name in ("Accepted", "Drafted"))
_LOG_MEAN = re.compile(rf"Mean acceptance length: ({NUMBER})")
MEAN_ROUNDING = 0.0051
"""Two decimals."""
DRAFTS, DRAFTED, ACCEPTED = "spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens"
RATES = "spec_decode_per_position_acceptance_rates"
PRINTED_HEADING = " Serving Benchmark Result "
PRINTED = {
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Successful requests": "num_prompts",
    "Output token throughput (tok/s)": "output_throughput",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Accept length": "accept_length",
    "Acceptance length": "spec_decode_acceptance_length",
    "Drafts": DRAFTS,
    "Draft tokens": DRAFTED,
    "Accepted tokens": ACCEPTED,
}
"""Names in the saved results by those in the printed ones, of SGLang's bench_serving too, whose heading is the same."""
_PRINTED_LINE = re.compile(rf"^\s{{0,9}}(\w[^:\n]{{0,60}}):\s{{0,60}}({NUMBER})\s*$", re.MULTILINE)
_PRINTED_END = re.compile(r"^\s{0,9}={9,}\s*$", re.MULTILINE)
PERCENT_ROUNDING = 5e-5
"""Rates in per cent have two decimals."""


def read_log(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of all lines, each weighted by its drafts.

    Raises FormatError naming a line whose rates do not make its mean acceptance length, such as one that was cut off.
    """
    intervals: list[tuple[list[float], int | None]] = []
    has_shorter = False
    for number, line in enumerate(file.log.split("\n"), start=1):
        if (numbers := _LOG_RATES.search(line)) is not None:
            rates = [float(rate) for rate in numbers[1].split(",")]
            if line[numbers.end() :].strip() == ",":
                raise file.error(
                    f"line {number}", "expected a rate after the last comma. Got none: join the broken line."
                )
            drafted, mean = _LOG_DRAFTED.search(line), _LOG_MEAN.search(line)
            within = MEAN_ROUNDING + RATE_ROUNDING * len(rates)
            # in older versions the mean does not include the target's own token
            if mean is not None and min(abs(own + sum(rates) - float(mean[1])) for own in (0, 1)) > within:
                raise file.error(
                    f"line {number}",
                    f"expected rates whose sum is {float(mean[1]) - 1:.2f}, the mean acceptance length less 1. Got "
                    f"{sum(rates):.2f}: is the line complete?",
                )
            drafts = None if drafted is None else int(drafted[1]) // len(rates)
            if drafts and (accepted := _LOG_ACCEPTED.search(line)) is not None:
                full_drafts, drafts = drafts, _count_drafts(rates, int(accepted[1]), drafts)
                has_shorter |= drafts > full_drafts
            intervals.append((rates, drafts))
    if not intervals:
        raise file.error("content", f"expected numbers separated by commas after {LOG_MARK!r}. Got none.")
    counted = [(rates, drafts) for rates, drafts in intervals if drafts]
    if not counted:
        return _average_rates(file, [rates for rates, _ in intervals])
    counts = [
        # rounded rates may rise, counts may not
        file.build("content", StepCounts.from_rates, list(accumulate(rates, min)), drafts)
        for rates, drafts in counted
    ]
    kind = f"vLLM log, {len(counted)} line{'s' * (len(counted) > 1)}"
    return file.build("content", pool_steps, counts, kind, by_request=False, shorter_drafts=has_shorter)


def _count_drafts(rates: Sequence[float], accepted_tokens: int, full_drafts: int) -> int:
    """Return the drafts of a line, `full_drafts` unless some drafted fewer tokens than there are positions."""
    mean = sum(rates)
    if mean == 0 or accepted_tokens <= full_drafts * (mean + RATE_ROUNDING * len(rates)):
        return full_drafts
    return round(accepted_tokens / mean)


def _average_rates(file: ForeignFile, intervals: Sequence[Sequence[float]]) -> ImportedAcceptance:
    """Return the mean rates of the lines that have as many positions as the last."""
    rows = [rates for rates in intervals if len(rates) == len(intervals[-1])]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    kind = f"vLLM log, mean of {len(rows)} lines without counts"
    return file.build("content", acceptance_from_rates, means, kind)


def read_bench(file: ForeignFile) -> ImportedAcceptance | tuple[SweepRow, ...]:
    """Return the acceptance of all runs, or the rows of a sweep.

    Raises FormatError for totals that contradict the rates, for several models, and for several printed runs that drafted,
    because they do not name their model.
    """
    printed = _is_printed(file)
    if printed:
        file = replace(file, data="\n".join(map(json.dumps, _parse_printed(file.log))).encode())
    if file.part == SWEEP:
        return read_sweep(file)
    results = [result for result in file.objects if RATES in result.content]
    file.check_one("model_id", "the results of one model", [result.content.get("model_id") for result in results])
    if printed and len(results) != 1:
        raise file.error(
            "content",
            f"expected one result with Per-position acceptance. Got {len(results) or 'none'}: keep one that drafted.",
        )
    rounding = PERCENT_ROUNDING if printed else 0.0
    return _pool_runs(file, [result.inner() for result in results], rounding)


def _is_printed(file: ForeignFile) -> bool:
    return PRINTED_HEADING in file.log


def _parse_printed(text: str) -> list[dict[str, Any]]:
    """Return the printed results as --save-result writes them; numbers that were not printed are None."""
    results = []
    for block in text.split(PRINTED_HEADING)[1:]:
        block = _PRINTED_END.split(block.partition("\n")[2])[0]  # what follows may be of the next run
        numbers = {
            name: int(number) if number.isdecimal() else float(number) for name, number in _PRINTED_LINE.findall(block)
        }
        result: dict[str, Any] = dict.fromkeys(PRINTED.values())
        result |= {saved: numbers[name] for name, saved in PRINTED.items() if name in numbers}
        if rates := [number / 100 for name, number in numbers.items() if name.startswith("Position ")]:
            result[RATES] = rates
        results.append(result)
    return results


def _pool_runs(file: ForeignFile, runs: Sequence[Fields], rounding: float) -> ImportedAcceptance:
    kind = "vLLM benchmark result"
    if len(runs) == 1 and DRAFTS not in runs[0]:
        return runs[0].build(RATES, acceptance_from_rates, runs[0].numbers(RATES), f"{kind}, rates only")
    counts, has_shorter = [], False
    for run in runs:
        drafts, rates = run.integer(DRAFTS), run.numbers(RATES)
        run.build(RATES, check_rates, rates)
        steps = StepCounts.from_rates(rates, drafts)
        if ACCEPTED in run:
            accepted = run.integer(ACCEPTED, least=0)
            within = (0.5 + rounding * drafts) * len(rates)  # each count was rounded, and each printed rate
            why = f"{ACCEPTED}, over all drafts"
            check_equal(run, RATES, accepted, why, within=within, got=sum(steps.accepted))
        has_shorter |= DRAFTED in run and run.integer(DRAFTED, least=0) < drafts * len(rates)
        counts.append(steps)
    return file.build(RATES, pool_steps, counts, kind, by_request=False, shorter_drafts=has_shorter)


LOG = Importer(
    name="vllm-log",
    title="vLLM's log",
    needs="lines with Drafted and Per-position acceptance rate; all lines count",
    matches=lambda file: LOG_MARK in file.log,
    read=read_log,
)
BENCH = Importer(
    name="vllm-bench",
    title="result of vllm bench serve, saved or printed",
    contains=(ACCEPTANCE, SWEEP),
    needs="spec_decode_per_position_acceptance_rates, and spec_decode_num_drafts for intervals",
    matches=lambda file: _is_printed(file) or any(RATES in result.content for result in file.objects),
    read=read_bench,
)
