"""Acceptance of single requests: metrics in vLLM's responses, and AIPerf's records, which contain the same.

Responses of `vllm run-batch` contain them too.

As vLLM's page on per-request acceptance metrics and AIPerf's `SpecDecodeAcceptanceRecord` define them:

    acceptance_histogram[j]: steps that accepted j draft tokens
    num_spec_steps = sum of acceptance_histogram
    num_accepted_draft_tokens = sum of j acceptance_histogram[j]
    mean_acceptance_length = 1 + num_accepted_draft_tokens / num_spec_steps
    per_step_accepted[i] <= per_step_drafted[i] <= num_spec_tokens

vLLM writes the histogram as a list, AIPerf as an object without zeros. Only the histogram or `per_step_accepted` is
required. Fields that are not named here are ignored. AIPerf's summary has the histogram of all requests together:

    pooled_spec_decode_acceptance_histogram
    total_draft_tokens.avg, total_spec_decode_steps.avg: totals, in spite of the name
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treeopt.engines.importers.acceptance_tables import StepCounts, pool_lengths, pool_steps
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile, JsonObject, check_equal
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.files.fields import Fields

AIPERF, VLLM = "spec_decode_acceptance", "speculative_decoding"
POOLED, DRAFTED, STEPS = "pooled_spec_decode_acceptance_histogram", "total_draft_tokens", "total_spec_decode_steps"
ROUNDING = 5e-3
"""Means and rates have two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Steps of one request; fields are None if the file does not contain them."""

    histogram: Mapping[int, int]
    """Steps by accepted draft tokens."""
    accepted: tuple[int, ...] | None
    """Accepted draft tokens of each step."""
    drafted: tuple[int, ...] | None
    """Draft tokens of each step."""
    depth: int | None
    """Most draft tokens of a step."""
    drafted_tokens: int | None

    @property
    def steps(self) -> int:
        return sum(self.histogram.values())

    @property
    def has_shorter_drafts(self) -> bool:
        """Whether some steps drafted less than others, and it is not known which."""
        if self.drafted is not None or self.depth is None or self.drafted_tokens is None:
            return False
        return self.drafted_tokens < self.steps * self.depth

    def step_counts(self, depth: int) -> StepCounts:
        """Return the counts; `depth` is the draft length if the request does not contain it."""
        if self.accepted is not None and self.drafted is not None:
            return StepCounts.from_steps(self.accepted, self.drafted)
        return StepCounts.from_lengths(self.histogram, depth if self.depth is None else self.depth)


def is_requests(file: ForeignFile) -> bool:
    """Return whether an object is a response, metrics of vLLM alone, or of AIPerf a record or summary."""
    keys = ({"metadata", "metrics"}, {"choices", "usage"}, {"choices", "metrics"}, {POOLED})
    return any(
        any(names <= response.content.keys() for names in keys) or _find_metrics(response) is not None
        for response in file.objects
    )


def read_requests(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of all requests that have metrics.

    Raises FormatError naming the line and the field, for numbers that contradict each other, and if nothing was
    drafted.
    """
    if POOLED in file.objects[0].content:
        return _read_summary(file)
    found = [(response, metrics) for response in file.objects if (metrics := _find_metrics(response)) is not None]
    if not found:
        raise file.error(
            "content",
            f"expected {AIPERF} or metrics.{VLLM} of at least one request. Got none: start vLLM with "
            "--per-request-spec-decode-metrics detailed, AIPerf with --export-level records, and request "
            "return_spec_tokens_details from SGLang.",
        )
    file.check_one("model", "the requests of one model", [response.content.get("model") for response, _ in found])
    file.check_one("engine", "the requests of one engine", [metrics.content.get("engine") for _, metrics in found])
    requests = [request for _, metrics in found if (request := _read_request(metrics)).histogram]
    depth = max((max(max(request.histogram), request.depth or 0) for request in requests), default=0)
    kind = "AIPerf records" if AIPERF in found[0][0].content else "vLLM request metrics"
    return file.build(
        "content",
        pool_steps,
        [request.step_counts(depth) for request in requests],
        kind,
        shorter_drafts=any(request.has_shorter_drafts for request in requests),
    )


def _read_summary(file: ForeignFile) -> ImportedAcceptance:
    fields = file.objects[0].inner()
    histogram = fields.read_counts(POOLED)
    steps, depth = sum(histogram.values()), max(histogram, default=0)
    if STEPS in fields and (total := fields.mapping(STEPS).integer("avg", least=0)) != steps:
        raise fields.error(
            POOLED, f"expected {total} steps, as {STEPS} has. Got {steps}: one is wrong, export it again."
        )
    if DRAFTED in fields and steps:
        depth = max(depth, round(fields.mapping(DRAFTED).number("avg") / steps))
    return file.build(POOLED, pool_lengths, [histogram], "AIPerf summary", depth=depth, by_request=False)


def _find_metrics(response: JsonObject) -> JsonObject | None:
    """Return the metrics of a request that an object contains or is; None if it has none."""
    for *path, name in ((AIPERF,), ("metrics", VLLM), (VLLM,)):
        outer = response.content.get(path[0]) if path else response.content
        if isinstance(outer, dict) and outer.get(name) is not None:
            return response.inner(*path, name)
    return response.inner() if response.content.keys() & {"num_spec_steps", "per_step_accepted"} else None


def _read_request(fields: JsonObject) -> _Request:
    depth = _read_whole(fields, "num_spec_tokens")
    limit = MAX_STEP_TOKENS if depth is None else min(depth, MAX_STEP_TOKENS)
    accepted = _read_steps(fields, "per_step_accepted")
    drafted = None if accepted is None else _read_steps(fields, "per_step_drafted")
    if accepted is not None and drafted is not None:
        _check_steps(fields, accepted, drafted)
    histogram: Mapping[int, int] | None = None if accepted is None else Counter(accepted)
    if "acceptance_histogram" in fields:
        counts = fields.read_counts("acceptance_histogram")
        if histogram is not None and histogram != counts:
            raise fields.error(
                "acceptance_histogram",
                "expected the steps of per_step_accepted. Got other counts: one is wrong, write them again.",
            )
        histogram = counts
    if histogram is None:
        raise fields.error(
            "acceptance_histogram",
            "is missing, and per_step_accepted too. Totals do not contain positions: take the engine's /metrics.",
        )
    longest = max([*histogram, *(drafted or ())], default=0)
    if longest > limit:
        raise fields.error(
            "num_spec_tokens",
            f"expected at least the draft tokens of every step. Got {limit}, and a step of {longest}.",
        )
    drafted_tokens = _read_totals(fields, histogram, limit, None if drafted is None else sum(drafted))
    return _Request(histogram=histogram, accepted=accepted, drafted=drafted, depth=depth, drafted_tokens=drafted_tokens)


def _read_whole(fields: Fields, field: str) -> int | None:
    return fields.integer(field, least=0) if field in fields else None


def _read_steps(fields: Fields, field: str) -> tuple[int, ...] | None:
    if field not in fields:
        return None
    tokens = tuple(fields.integers(field))
    if not 0 <= min(tokens, default=0) <= max(tokens, default=0) <= MAX_STEP_TOKENS:
        raise fields.error(
            field, f"expected 0 to {MAX_STEP_TOKENS} tokens in every step. Got {min(tokens)} to {max(tokens)}."
        )
    return tokens


def _check_steps(fields: Fields, accepted: Sequence[int], drafted: Sequence[int]) -> None:
    if len(drafted) != len(accepted):
        raise fields.error(
            "per_step_drafted",
            f"expected {len(accepted)}, one per step of per_step_accepted. Got {len(drafted)}: write both again.",
        )
    for step, (taken, tried) in enumerate(zip(accepted, drafted, strict=True)):
        if taken > tried:
            raise fields.error(
                f"per_step_accepted[{step}]",
                f"expected at most the {tried} draft tokens of that step. Got {taken}: write the file again.",
            )


def _read_totals(fields: Fields, histogram: Mapping[int, int], limit: int, drafted_in_steps: int | None) -> int | None:
    """Return the drafted tokens, if the file contains them; raises FormatError for totals that contradict the steps."""
    steps = sum(histogram.values())
    accepted = sum(length * count for length, count in histogram.items())
    drafted = _read_whole(fields, "num_draft_tokens")
    least, most = (accepted, steps * limit) if drafted_in_steps is None else (drafted_in_steps, drafted_in_steps)
    if drafted is not None and not least <= drafted <= most:
        raise fields.error("num_draft_tokens", f"expected {least} to {most} in these steps. Got {drafted}.")
    completion = _read_whole(fields, "completion_tokens")
    if completion is not None and accepted > completion + max(histogram, default=0):  # the last step may be cut off
        raise fields.error(
            "completion_tokens",
            f"expected at least about the {accepted} that were accepted. Got {completion}: the server counts wrongly.",
        )
    for name, expected, within in (
        ("num_spec_steps", steps, 0.0),
        ("num_accepted_draft_tokens", accepted, 0.0),
        ("mean_acceptance_length", 1 + accepted / steps if steps else None, ROUNDING),
        ("draft_acceptance_rate", accepted / drafted if drafted else None, ROUNDING),
    ):
        if expected is not None:
            check_equal(fields, name, expected, "as the steps have", within=within)
    return drafted


REQUESTS = Importer(
    name="requests",
    title="responses of vLLM, or records or the summary of AIPerf",
    needs="metrics.speculative_decoding or spec_decode_acceptance of at least one request",
    matches=is_requests,
    read=read_requests,
)
