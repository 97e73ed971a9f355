"""Acceptance of which only the mean is known: SGLang's log and metrics, and the report of trtllm-bench.

A mean number of tokens per step does not tell positions. It is imported as a chain whose tokens are all accepted with the
same probability p, given those before: with K draft tokens, mean = 1 + p + p² + … + p^K. The source says so.
"""

import re
from typing import Any

from treeopt.engines.importers.acceptance_tables import table_of_conditional
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields
from treeopt.records.acceptance import AcceptanceTable

EQUAL = "mean only, all positions taken for equal"
MOST_TOKENS = 256
WHOLE = 0.1
"""A draft length that follows from a mean and a rate is whole within this."""
DECODE_LINE = re.compile(
    r"Decode batch.{0,400}?#running-req: (\d{1,6}).{0,400}?accept len: (\d{1,4}(?:\.\d{1,9})?), accept rate: (\d(?:\.\d{1,9})?)"
)
SGLANG_MARK = "accept len: "
GAUGE = re.compile(
    r"^sglang:spec_accept_(length|rate)(?:\{[^}\n]{0,2000}\})?[ \t]{1,9}(\d{1,9}(?:\.\d{1,17})?)", re.MULTILINE
)
REPORT = "decoding_stats"
MEAN_KEY = "accept_length"


def is_sglang_log(file: ForeignFile) -> bool:
    """Return whether a text, no JSON, has lines of SGLang's decoding with the acceptance."""
    return SGLANG_MARK in file.text and not file.is_json


def read_sglang_log(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of all lines, weighted by their running requests."""
    lines = [(int(n), float(mean), float(rate)) for n, mean, rate in DECODE_LINE.findall(file.text)]
    requests = sum(n for n, _, _ in lines)
    if not requests:
        raise file.error(
            "content", "expected lines with #running-req, accept len and accept rate. Got none: is it whole?"
        )
    mean = sum(n * mean for n, mean, _ in lines) / requests
    rate = sum(n * rate for n, _, rate in lines) / requests
    return Measurements(acceptance=_of_mean(file, "accept len", mean, rate, f"SGLang log; {EQUAL}"))


def is_sglang_metrics(file: ForeignFile) -> bool:
    """Return whether a text has the gauges of SGLang's `/metrics`."""
    return GAUGE.search(file.text) is not None


def read_sglang_metrics(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of the gauges."""
    gauges = {name: float(value) for name, value in GAUGE.findall(file.text)}
    for name in ("length", "rate"):
        if name not in gauges:
            raise file.error(f"sglang:spec_accept_{name}", "is missing. Save all of /metrics.")
    kind = f"SGLang metrics; {EQUAL}"
    return Measurements(acceptance=_of_mean(file, "sglang:spec_accept_length", gauges["length"], gauges["rate"], kind))


def is_trtllm_report(file: ForeignFile) -> bool:
    """Return whether a file is the report of trtllm-bench with speculative decoding."""
    return isinstance(file.json, dict) and REPORT in file.json


def read_trtllm_report(file: ForeignFile) -> Measurements:
    """Return the mean acceptance of a report."""
    fields = Fields(file.path, file.json).mapping(REPORT)
    mean = _average(fields, "acceptance_length_percentiles")
    rate = _average(fields, "draft_acceptance_rate_percentiles")
    return Measurements(acceptance=_of_mean(file, REPORT, mean, rate, f"trtllm-bench report; {EQUAL}"))


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
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(length + 1)) < mean_tokens else (low, middle)
    return table_of_conditional([(low + high) / 2] * length)


def _of_mean(file: ForeignFile, field: str, mean: float, rate: float, kind: str) -> ImportedAcceptance:
    """Return the acceptance of a mean number of tokens per step and the share of drafted tokens that was accepted."""
    length = (mean - 1) / rate if rate > 0 else 0.0
    if not 1 - WHOLE <= length <= MOST_TOKENS or abs(length - round(length)) > WHOLE * max(1, length / 8):
        raise file.error(
            field,
            f"expected a mean of tokens per step and a rate that make a whole draft length, (mean - 1) / rate. Got {mean:.4g} "
            f"and {rate:.4g}: take the acceptance of positions.",
        )
    return ImportedAcceptance(table=geometric(mean, round(length)), kind=kind)


def _average(fields: Fields, field: str) -> float:
    inner: Any = fields.mapping(field)
    average: float = inner.number("average")
    return average
