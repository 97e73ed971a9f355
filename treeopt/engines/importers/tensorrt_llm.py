"""TensorRT-LLM: its cost table, and the report of trtllm-bench, which has a mean acceptance only."""

import math

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH, acceptance_from_mean
from treeopt.engines.importers.cost_tables import Probes, build_additive_latencies
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import ACCEPTANCE, TIMES, Importer, Measurements
from treeopt.files.fields import Fields

REPORT = "decoding_stats"
WHOLE = 0.1
"""Largest distance from a whole number of a draft length computed from a mean and a rate."""


def is_cost_table(file: ForeignFile) -> bool:
    return isinstance(file.json, dict) and "token_counts" in file.json


def read_cost_table(file: ForeignFile) -> Measurements:
    """Return a curve for every batch size of `batch_sizes`."""
    fields = Fields(file.path, file.json)
    latencies = build_additive_latencies(
        file,
        "TensorRT-LLM cost table",
        fixed_s=fields.number("fixed_overhead_ms", least=-math.inf) * 1e-3,
        batches=Probes.read(fields, "batch_sizes", "batch_overhead_ms", unit=1e-3),
        passes=Probes.read(fields, "token_counts", "step_time_ms", unit=1e-3),
    )
    return Measurements(latencies=latencies)


def is_bench_report(file: ForeignFile) -> bool:
    return isinstance(file.json, dict) and REPORT in file.json


def read_bench_report(file: ForeignFile) -> Measurements:
    """Return the mean acceptance; raises FormatError if the averages do not yield a whole draft length."""
    fields = Fields(file.path, file.json).mapping(REPORT)
    mean = fields.mapping("acceptance_length_percentiles").number("average")
    rate = fields.mapping("draft_acceptance_rate_percentiles").number("average")
    length = (mean - 1) / rate if rate > 0 else 0.0
    if not 1 - WHOLE <= length <= MAX_LENGTH or abs(length - round(length)) > WHOLE * max(1, length / 8):
        raise file.error(
            REPORT,
            f"expected averages that make a whole draft length, (length - 1) / rate. Got {mean:.4g} and {rate:.4g}: take "
            "the acceptance of positions.",
        )
    return Measurements(acceptance=acceptance_from_mean(mean, round(length), "trtllm-bench report"))


BENCH_REPORT = Importer(
    name="trtllm-bench",
    title="report of trtllm-bench",
    contains=(ACCEPTANCE,),
    needs="decoding_stats; positions are taken for equal",
    matches=is_bench_report,
    read=read_bench_report,
)
COST_TABLE = Importer(
    name="tensorrt-llm",
    title="TensorRT-LLM's cost table",
    contains=(TIMES,),
    needs="token_counts, step_time_ms, fixed_overhead_ms, batch_sizes and batch_overhead_ms",
    matches=is_cost_table,
    read=read_cost_table,
)
