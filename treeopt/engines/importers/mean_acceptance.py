"""Acceptance of which only the mean is known: SGLang's log and metrics, and the report of trtllm-bench.

A mean number of tokens per step does not tell positions. It is imported as a chain whose tokens are all accepted with the
same probability p, given those before: with K draft tokens, mean = 1 + p + p² + … + p^K. The source says so.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from treeopt.engines.importers.acceptance_tables import table_of_conditional
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields
from treeopt.records.acceptance import AcceptanceTable

MOST_TOKENS = 256
HALVINGS = 60
WHOLE = 0.1
"""A draft length that follows from a mean and a rate is whole within this."""
_NUMBER = r"\d{1,9}(?:\.\d{1,17})?"
DECODE_LINE = re.compile(
    rf"Decode batch.{{0,400}}?#running-req: (\d{{1,6}}).{{0,400}}?accept len: ({_NUMBER})(?:, accept rate: ({_NUMBER}))?"
)
SGLANG_MARK = "accept len: "
NUM_STEPS = re.compile(r"speculative_num_steps=(\d{1,3})\b")
GAUGE = re.compile(
    rf"^sglang:spec_(accept_length|accept_rate|num_steps)(?:\{{[^}}\n]{{0,2000}}\}})?[ \t]{{1,9}}({_NUMBER})",
    re.MULTILINE,
)
REPORT = "decoding_stats"
MEAN_KEY = "accept_length"


def equal_positions(length: int) -> str:
    """Return the remark on an acceptance of which only the mean is known."""
    return f"mean only, all {length} positions taken for equal"


class _Mean(NamedTuple):
    """A mean number of tokens per step and the rate printed with it, as written; no rate in older versions."""

    weight: int
    tokens: str
    rate: str


def is_sglang_log(file: ForeignFile) -> bool:
    """Return whether a text, no JSON, has lines of SGLang's decoding with the acceptance."""
    return SGLANG_MARK in file.text and not file.is_json


def read_sglang_log(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of all lines, weighted by their running requests."""
    matches = [_Mean(int(weight), tokens, rate) for weight, tokens, rate in DECODE_LINE.findall(file.text)]
    means = [each for each in matches if each.weight and float(each.tokens) >= 1]
    if not means:
        raise file.error("content", "expected lines with #running-req and accept len. Got none: is it whole?")
    tokens = sum(each.weight * float(each.tokens) for each in means) / sum(each.weight for each in means)
    stated = set(map(int, NUM_STEPS.findall(file.text)))
    length = _sglang_length(file, SGLANG_MARK.strip(" :"), means, stated)
    return Measurements(acceptance=_acceptance_of_mean(tokens, length, "SGLang log"))


def is_sglang_metrics(file: ForeignFile) -> bool:
    """Return whether a text has the gauges of SGLang's `/metrics`."""
    return GAUGE.search(file.text) is not None


def read_sglang_metrics(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of the gauges."""
    gauges = dict(GAUGE.findall(file.text))
    for name in ("accept_length", "accept_rate"):
        if name not in gauges:
            raise file.error(f"sglang:spec_{name}", "is missing. Save all of /metrics.")
    mean = _Mean(1, gauges["accept_length"], gauges["accept_rate"])
    stated = {int(float(gauges["num_steps"]))} if "num_steps" in gauges else set[int]()
    length = _sglang_length(file, "sglang:spec_accept_length", [mean], stated)
    return Measurements(acceptance=_acceptance_of_mean(float(mean.tokens), length, "SGLang metrics"))


def is_trtllm_report(file: ForeignFile) -> bool:
    """Return whether a file is the report of trtllm-bench with speculative decoding."""
    return isinstance(file.json, dict) and REPORT in file.json


def read_trtllm_report(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of a report."""
    fields = Fields(file.path, file.json).mapping(REPORT)
    mean = _average(fields, "acceptance_length_percentiles")
    rate = _average(fields, "draft_acceptance_rate_percentiles")
    length = (mean - 1) / rate if rate > 0 else 0.0
    if not 1 - WHOLE <= length <= MOST_TOKENS or abs(length - round(length)) > WHOLE * max(1, length / 8):
        raise file.error(
            REPORT,
            f"expected averages that make a whole draft length, (length - 1) / rate. Got {mean:.4g} and {rate:.4g}: take "
            "the acceptance of positions.",
        )
    return Measurements(acceptance=_acceptance_of_mean(mean, round(length), "trtllm-bench report"))


def is_mean_only(file: ForeignFile) -> bool:
    """Return whether objects hold a mean acceptance length and nothing that tells the draft length, as SGLang's bench_serving."""
    return any(MEAN_KEY in each.fields and "steps" not in each.fields for each in file.objects)


def read_mean_only(file: ForeignFile) -> Measurements:
    """Refuse: neither positions nor the draft length are known."""
    place = next(each.place for each in file.objects if MEAN_KEY in each.fields) or "content"
    raise file.error(
        place,
        f"expected acceptance by position. Got the mean {MEAN_KEY} only: take SGLang's responses with meta_info, which have "
        "spec_accept_histogram, or probe the server with treeopt probe openai.",
    )


def geometric(mean_tokens: float, length: int) -> AcceptanceTable:
    """Return the chain of `length` draft tokens, all accepted with one probability, that comes to a mean of tokens per step.

    >>> geometric(1.75, 2).p.round(6).tolist()
    [[0.5], [0.5]]
    """
    return table_of_conditional([equal_rate(mean_tokens - 1, length)] * length)


def equal_rate(accepted_tokens: float, length: int) -> float:
    """Return the p from 0 to 1 for which p + p² + … + p^length is nearest to a mean number of accepted tokens."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if sum(middle**power for power in range(1, length + 1)) < accepted_tokens:
            low = middle
        else:
            high = middle
    return high


def _acceptance_of_mean(mean_tokens: float, length: int, kind: str) -> ImportedAcceptance:
    return ImportedAcceptance(table=geometric(mean_tokens, length), kind=f"{kind}; {equal_positions(length)}")


def _sglang_length(file: ForeignFile, field: str, means: Sequence[_Mean], stated: set[int]) -> int:
    """Return the draft tokens of a step: as SGLang was started, else as means and rates have it.

    A rate is (mean - 1) / length, or mean / (length + 1) in older versions: the newer where both fit.
    """
    most = max(float(each.tokens) for each in means)
    if len(stated) == 1 and (length := min(stated)) and most <= length + 1:
        return length
    rated = [each for each in means if each.rate]
    for own_token in (1, 0):
        lengths = [(float(each.tokens) - own_token) / float(each.rate) for each in rated if float(each.rate)]
        parts = round(sorted(lengths)[len(lengths) // 2]) if lengths else 0
        length = parts - (1 - own_token)
        if 1 <= length <= MOST_TOKENS and most <= length + 1 and all(_fits(each, own_token, parts) for each in rated):
            return length
    raise file.error(
        field,
        "expected a draft length: speculative_num_steps in the log's server_args, or rates that make one with the means. "
        "Got none: take SGLang's responses with meta_info, which have spec_accept_histogram.",
    )


def _fits(mean: _Mean, own_token: int, parts: int) -> bool:
    """Return whether rate x parts is the mean less the target's own token, within the rounding of both."""
    rounding = _rounding(mean.tokens) + parts * _rounding(mean.rate)
    return abs(float(mean.rate) * parts - (float(mean.tokens) - own_token)) < rounding - 1e-9


def _rounding(number: str) -> float:
    digits: float = 10.0 ** -len(number.partition(".")[2])
    return 0.5 * digits


def _average(fields: Fields, field: str) -> float:
    inner: Any = fields.mapping(field)
    average: float = inner.number("average")
    return average
