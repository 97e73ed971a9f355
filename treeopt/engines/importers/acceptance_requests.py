"""Acceptance of single requests: vLLM's metrics in its responses, and AIPerf's records, which hold the same.

As vLLM's page on per-request acceptance metrics and AIPerf's `SpecDecodeAcceptanceRecord` define them:

    num_spec_steps = all counts of acceptance_histogram, whose place j counts the steps that accepted j draft tokens
    num_accepted_draft_tokens = sum of j times its count
    mean_acceptance_length = 1 + num_accepted_draft_tokens / num_spec_steps
    per_step_accepted[i] <= per_step_drafted[i] <= num_spec_tokens

vLLM writes the histogram as a list, AIPerf as an object without zeros.  Fields that are not named here are let be, and
all are optional but for the histogram or the accepted tokens of every step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.engines.importers.content import MOST, JsonObject, check_equal, read_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.errors import FormatError
from treeopt.files.fields import Fields

AIPERF, VLLM = "spec_decode_acceptance", "speculative_decoding"
SHORT = "shorter drafts count as rejected"
ROUNDING = 5e-3
"""Of a mean or a rate: two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What one request says of its steps."""

    lengths: Mapping[int, int]
    """How many steps accepted so many draft tokens."""
    drafted: tuple[int, ...] | None
    """What every step drafted; None where it does not say."""
    accepted: tuple[int, ...] | None
    """What every step accepted; None likewise."""
    depth: int | None
    """Draft tokens of a step at most; None likewise."""
    drafted_tokens: int | None

    @property
    def steps(self) -> int:
        return sum(self.lengths.values())

    @property
    def short(self) -> bool:
        """Whether some steps drafted less than others, and it is not known which."""
        if self.drafted is not None or self.depth is None or self.drafted_tokens is None:
            return False
        return self.drafted_tokens < self.steps * self.depth

    def counts(self, depth: int) -> StepCounts:
        """Return the counts, with drafts of `depth` tokens where it does not say how long they were."""
        if self.accepted is not None and self.drafted is not None:
            return StepCounts.of_steps(self.accepted, self.drafted)
        return StepCounts.of_lengths(self.lengths, depth if self.depth is None else self.depth)


def is_requests(file: ForeignFile) -> bool:
    """Return whether one of the objects is a vLLM response with metrics, such metrics alone, or a record of AIPerf."""
    contents = [each.fields for each in file.objects]
    return any(_where(each) is not None or {"metadata", "metrics"} <= each.keys() for each in contents)


def read_requests(file: ForeignFile) -> Measurements:
    """Return the acceptance of all requests together; those that say nothing of drafts are left out.

    Raises FormatError naming the line and the field, for numbers that contradict each other, and where nothing was
    drafted.
    """
    path = file.path
    stated = [(each, where) for each in file.objects if (where := _where(each.fields)) is not None]
    known = [(each, where) for each, where in stated if _value(each, where) is not None]
    if not known:
        raise FormatError(
            path,
            "content",
            f"expected {AIPERF} or metrics.{VLLM} of at least one request. Got none: start vLLM with "
            "--per-request-spec-decode-metrics detailed, and AIPerf with --export-level records.",
        )
    _check_one(path, "model", [each.fields.get("model") for each, _ in known])
    metrics = [each.inner(path, *where) for each, where in known]
    _check_one(path, "engine", [each.fields.get("engine") for each in metrics])
    requests = [request for request in (_request(path, each) for each in metrics) if request.lengths]
    depth = max((max(max(each.lengths), each.depth or 0) for each in requests), default=0)
    total = Fields(path, {}).build("content", pooled, [each.counts(depth) for each in requests])
    kind = "AIPerf records" if known[0][1] == (AIPERF,) else "vLLM request metrics"
    return Measurements(
        acceptance=ImportedAcceptance(
            table=total.table,
            kind=f"{kind}; {SHORT}" if any(each.short for each in requests) else kind,
            prompts=len(requests),
            positions=sum(each.steps for each in requests),
            texts=total.texts,
        )
    )


def _where(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names under which an object holds metrics of a request; no names where it is these itself."""
    metrics = content.get("metrics")
    if AIPERF in content:
        return (AIPERF,)
    if isinstance(metrics, dict) and VLLM in metrics:
        return "metrics", VLLM
    if VLLM in content:
        return (VLLM,)
    return () if content.keys() & {"num_spec_steps", "per_step_accepted"} else None


def _value(each: JsonObject, where: tuple[str, ...]) -> object:
    content: Any = each.fields
    for name in where:
        content = content[name]
    return content


def _check_one(path: Path | str, name: str, values: Sequence[object]) -> None:
    found = {value for value in values if isinstance(value, str)}
    if len(found) > 1:
        raise FormatError(path, name, f"expected the requests of one {name}. Got {len(found)}: keep one's lines.")


def _request(path: Path | str, metrics: JsonObject) -> _Request:
    fields = metrics.read(path)
    depth = _whole(fields, "num_spec_tokens")
    limit = MOST if depth is None else min(depth, MOST)
    accepted = _list(fields, "per_step_accepted")
    drafted = None if accepted is None else _list(fields, "per_step_drafted")
    if accepted is not None and drafted is not None:
        _check_steps(fields, accepted, drafted)
    lengths: Mapping[int, int] | None = None if accepted is None else Counter(accepted)
    if "acceptance_histogram" in fields:
        histogram = read_counts(fields, "acceptance_histogram", metrics.fields["acceptance_histogram"])
        if lengths is not None and lengths != histogram:
            reason = "expected the steps of per_step_accepted. Got other counts: one is wrong, write them anew."
            raise fields.error("acceptance_histogram", reason)
        lengths = histogram
    if lengths is None:
        reason = "is missing, and per_step_accepted too. Totals do not tell positions: take the engine's /metrics."
        raise fields.error("acceptance_histogram", reason)
    if (most := max([*lengths, *(drafted or ())], default=0)) > limit:
        reason = f"expected at least the draft tokens of every step. Got {limit}, and a step of {most}."
        raise fields.error("num_spec_tokens", reason)
    tokens = _checked_totals(fields, lengths, limit, None if drafted is None else sum(drafted))
    return _Request(lengths=lengths, drafted=drafted, accepted=accepted, depth=depth, drafted_tokens=tokens)


def _whole(fields: Fields, field: str) -> int | None:
    return fields.integer(field, least=0) if field in fields else None


def _list(fields: Fields, field: str) -> tuple[int, ...] | None:
    if field not in fields:
        return None
    values = tuple(fields.integers(field))
    if not 0 <= min(values, default=0) <= max(values, default=0) <= MOST:
        raise fields.error(field, f"expected 0 to {MOST} tokens in every step. Got {min(values)} to {max(values)}.")
    return values


def _check_steps(fields: Fields, accepted: Sequence[int], drafted: Sequence[int]) -> None:
    if len(drafted) != len(accepted):
        reason = f"expected {len(accepted)}, one per step of per_step_accepted. Got {len(drafted)}: write both anew."
        raise fields.error("per_step_drafted", reason)
    for place, (taken, tried) in enumerate(zip(accepted, drafted, strict=True)):
        if taken > tried:
            reason = f"expected at most the {tried} draft tokens of that step. Got {taken}: write the file anew."
            raise fields.error(f"per_step_accepted[{place}]", reason)


def _checked_totals(fields: Fields, lengths: Mapping[int, int], limit: int, drafted: int | None) -> int | None:
    """Return the drafted tokens, where they are said; raises FormatError for totals that the steps do not come to."""
    steps, accepted = sum(lengths.values()), sum(length * count for length, count in lengths.items())
    said = (("num_spec_steps", steps), ("num_accepted_draft_tokens", accepted), ("num_draft_tokens", drafted))
    found = {field: _whole(fields, field) for field, _ in said}
    for field, counted in said:
        if None not in (found[field], counted) and found[field] != counted:
            reason = f"expected {counted}, what the steps come to. Got {found[field]}: one is wrong, write them anew."
            raise fields.error(field, reason)
    tokens = found["num_draft_tokens"]
    if tokens is not None and not accepted <= tokens <= steps * limit:
        reason = f"expected from {accepted} accepted to {steps * limit}, {limit} in every step. Got {tokens}."
        raise fields.error("num_draft_tokens", reason)
    completion = _whole(fields, "completion_tokens")
    if completion is not None and accepted > completion + max(lengths, default=0):  # the last step may be cut off
        reason = (
            f"expected at least about the {accepted} that were accepted. Got {completion}: the server counts wrongly."
        )
        raise fields.error("completion_tokens", reason)
    if steps and "mean_acceptance_length" in fields:
        mean, why = fields.number("mean_acceptance_length"), "1 + accepted draft tokens / steps"
        check_equal(fields, "mean_acceptance_length", expected=1 + accepted / steps, got=mean, within=ROUNDING, why=why)
    if tokens and "draft_acceptance_rate" in fields:
        rate, why = fields.number("draft_acceptance_rate"), "accepted / drafted tokens"
        check_equal(fields, "draft_acceptance_rate", expected=accepted / tokens, got=rate, within=ROUNDING, why=why)
    return tokens
