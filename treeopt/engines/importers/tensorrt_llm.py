"""TensorRT-LLM: the report of trtllm-bench, and iteration statistics, which have a mean acceptance only.

Iterations come from `/metrics` of trtllm-serve or from `LLM.get_stats`. Each may have `specDecodingStats`:

    numRequestsWithDraftTokens: requests that drafted
    numDraftTokens, numAcceptedTokens: of these requests together
    acceptanceLength = 1 + numAcceptedTokens / numRequestsWithDraftTokens
"""

from treeopt.engines.importers.acceptance_tables import MAX_LENGTH, acceptance_from_mean, acceptance_from_totals
from treeopt.engines.importers.foreign_file import ForeignFile, JsonObject, check_equal
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.files.fields import Fields

REPORT = "decoding_stats"
WHOLE = 0.1
"""Largest distance from a whole number of a draft length computed from a mean and a rate."""
ITERATION, STATISTICS = "iterLatencyMS", "specDecodingStats"
REQUESTS, DRAFTED, ACCEPTED = "numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens"
MEAN, ROUNDING = "acceptanceLength", 5e-3
RANKS = ("attentionDpRank", "rank")
"""The statistics of other ranks than 0 repeat those of rank 0."""


def read_bench_report(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance; raises FormatError if the averages do not yield a whole draft length."""
    fields = file.objects[0].mapping(REPORT)
    mean = fields.mapping("acceptance_length_percentiles").number("average")
    rate = fields.mapping("draft_acceptance_rate_percentiles").number("average")
    length = (mean - 1) / rate if rate > 0 else 0.0
    if not 1 - WHOLE <= length <= MAX_LENGTH or abs(length - round(length)) > WHOLE * max(1, length / 8):
        raise file.error(
            REPORT,
            f"expected averages that make a whole draft length, (length - 1) / rate. Got {mean:.4g} and {rate:.4g}: take "
            "the acceptance of positions.",
        )
    return acceptance_from_mean(mean, round(length), "trtllm-bench report")


def read_iterations(file: ForeignFile) -> ImportedAcceptance:
    """Return the mean acceptance of all iterations that drafted."""
    counts = [_count(row.inner(STATISTICS)) for row in file.objects if _has_statistics(row)]
    requests, drafted, accepted = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
    if not drafted:
        raise file.error(
            STATISTICS,
            f"expected {DRAFTED} above 0 of at least one iteration. Got none: does the server draft? Set "
            "enable_iter_perf_stats, and read /metrics after the requests.",
        )
    kind = "TensorRT-LLM iteration statistics"
    return file.build(STATISTICS, acceptance_from_totals, requests, drafted, accepted, kind)


def _has_statistics(iteration: JsonObject) -> bool:
    content = iteration.content
    return isinstance(content.get(STATISTICS), dict) and not any(content.get(rank) for rank in RANKS)


def _count(statistics: Fields) -> tuple[int, int, int]:
    """Return the requests that drafted, and their drafted and accepted tokens."""
    requests, drafted, accepted = (statistics.integer(name, least=0) for name in (REQUESTS, DRAFTED, ACCEPTED))
    if requests:
        check_equal(statistics, MEAN, 1 + accepted / requests, f"1 + {ACCEPTED} / {REQUESTS}", within=ROUNDING)
    return requests, drafted, accepted


BENCH_REPORT = Importer(
    name="trtllm-bench",
    title="report of trtllm-bench",
    needs="decoding_stats; all positions count as equal",
    matches=lambda file: file.has_key(REPORT),
    read=read_bench_report,
)
ITERATIONS = Importer(
    name="trtllm-iterations",
    title="iteration statistics of TensorRT-LLM, such as its /metrics",
    needs="specDecodingStats with its counts; all positions count as equal",
    matches=lambda file: any(row.content.keys() & {ITERATION, STATISTICS} for row in file.objects),
    read=read_iterations,
)
