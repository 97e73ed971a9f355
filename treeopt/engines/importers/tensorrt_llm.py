"""The report of trtllm-bench, which has a mean acceptance only."""

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH, acceptance_from_mean
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import Importer, Measurements
from treeopt.files.fields import Fields

REPORT = "decoding_stats"
WHOLE = 0.1
"""Largest distance from a whole number of a draft length computed from a mean and a rate."""


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
    needs="decoding_stats; all positions count as equal",
    matches=lambda file: file.has_key(REPORT),
    read=read_bench_report,
)
