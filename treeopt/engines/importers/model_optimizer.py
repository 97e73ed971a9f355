"""Acceptance that Model-Optimizer writes: `acceptance_rate.json` of its specdec_bench, and `speculation_profile.json`.

`acceptance_rate.json`:

    Acceptance_Length_Histogram: steps by the tokens that they yielded, including the target's own, so from 1
    Joint_Acceptance_Rate: share of all steps that yielded at least so many tokens

`speculation_profile.json`, schema 1.0, as `specdec_bench/speculation_profile.py` of pull request 2247 writes it:

    marginal_accept_rates[i] = P(a step accepts at least i + 1 draft tokens)
    conditional_accept_rates[i] = the same, given that it accepted at least i
    acceptance_length_histogram: steps by the tokens that they yielded, including the target's own
    mean_accept_length = 1 + sum of the marginal rates = the histogram's mean

Dynamo's mocker reads the conditional rates, vLLM's synthetic acceptance the marginal ones. Other fields are ignored.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul

from treeopt.engines.importers.acceptance_tables import (
    StepCounts,
    pool_steps,
    table_from_conditional,
    table_from_rates,
)
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile, JsonObject, check_equal
from treeopt.engines.importers.importer import ImportedAcceptance, Importer, Measurements
from treeopt.files.fields import Fields

BENCH_HISTOGRAM, BENCH_MEAN, BENCH_JOINT = "Acceptance_Length_Histogram", "Average_AL", "Joint_Acceptance_Rate"
BENCH_ROUNDING = 5e-3

VERSION = "1.0"
CONDITIONAL, MARGINAL = "conditional_accept_rates", "marginal_accept_rates"
HISTOGRAM, MEAN, BY_LENGTH = "acceptance_length_histogram", "mean_accept_length", "accept_length_by_k"
LENGTH = "num_speculative_tokens"
METHOD, PREFIX = "verification_method", "longest_prefix"
RATE_ROUNDING = 2e-3
"""Three decimals, in products."""
MEAN_ROUNDING = 0.02
"""What Model-Optimizer itself allows between the mean and the rates; the vectors are truncated where it is more."""


def read_bench(file: ForeignFile) -> Measurements:
    """Return the acceptance of the histogram; raises FormatError for a mean or rates that contradict it."""
    content = JsonObject(file.path, "", file.json).inner()
    fields, steps = content.fields, _read_steps(content, BENCH_HISTOGRAM)
    survival = _survival(steps, max(steps))
    if BENCH_MEAN in fields:
        mean, why = 1 + sum(survival), f"the mean of {BENCH_HISTOGRAM}"
        got, within = fields.number(BENCH_MEAN), BENCH_ROUNDING * mean
        check_equal(fields, BENCH_MEAN, expected=mean, got=got, within=within, why=why)
    if BENCH_JOINT in fields:
        rates = fields.mapping(BENCH_JOINT)
        for tokens, expected in enumerate(survival, start=2):
            if str(tokens) in rates:
                got, why = rates.number(str(tokens)), f"as in {BENCH_HISTOGRAM}"
                check_equal(rates, str(tokens), expected=expected, got=got, within=BENCH_ROUNDING, why=why)
    return Measurements(acceptance=_pool(fields, BENCH_HISTOGRAM, steps, max(1, *steps), "specdec_bench"))


def _read_steps(content: JsonObject, field: str) -> dict[int, int]:
    """Return the steps by accepted draft tokens of a histogram of yielded tokens."""
    tokens = content.read_counts(field)
    if not tokens or min(tokens) < 1:
        raise content.fields.error(
            field, "expected steps of 1 token or more, the target's own included. Got others: has it drafted yet?"
        )
    return {length - 1: count for length, count in tokens.items()}


def _survival(steps: Mapping[int, int], depth: int) -> list[float]:
    """Return the share of steps that accept at least 1, 2, … draft tokens."""
    total = sum(steps.values())
    return [sum(count for length, count in steps.items() if length > position) / total for position in range(depth)]


def _pool(fields: Fields, field: str, steps: Mapping[int, int], depth: int, kind: str) -> ImportedAcceptance:
    counts = StepCounts.from_lengths(steps, depth)
    return fields.build(field, pool_steps, [counts], kind, one_sequence=False)


def read_speculation_profile(file: ForeignFile) -> Measurements:
    """Return the acceptance of the histogram, otherwise that of the rates.

    Raises FormatError naming the field, for other versions, placeholders, and fields that contradict each other.
    """
    content = JsonObject(file.path, "", file.json).inner()
    fields = content.fields
    version = fields.text("schema_version")
    if version != VERSION:
        raise fields.error("schema_version", f"expected {VERSION!r}. Got {version!r:.40}: write it as that version.")
    if content.content.get("measured", True) is not True:
        raise fields.error("measured", "expected true. Got a placeholder: measure the draft with specdec_bench.")
    if METHOD in fields and (method := fields.text(METHOD)) != PREFIX:
        reason = f"expected {PREFIX!r}, where a token counts after all before it. Got {method!r:.40}: measure it so."
        raise fields.error(METHOD, reason)
    steps = _read_steps(content, HISTOGRAM) if HISTOGRAM in fields else {}
    rates = {name: fields.numbers(name) for name in (CONDITIONAL, MARGINAL) if name in fields}
    if not rates and (not steps or "vectors_unavailable_reason" in fields):
        raise fields.error(CONDITIONAL, "is missing, and the marginal rates too. Take a profile of longest_prefix.")
    longest = max(steps, default=0)
    length = fields.integer(LENGTH) if LENGTH in fields else max(1, longest, *map(len, rates.values()))
    for name, vector in rates.items():
        if len(vector) != length or length > MAX_STEP_TOKENS or not all(0 <= rate <= 1 for rate in vector):
            reason = f"expected {length} rates from 0 to 1, one per draft token. Got others: is the file complete?"
            raise fields.error(name, reason)
    if longest > length:
        reason = f"expected at most {length + 1} tokens a step, {length} of them drafted. Got {longest + 1}."
        raise fields.error(HISTOGRAM, reason)
    survivals = {
        name: list(accumulate(vector, mul)) if name == CONDITIONAL else vector for name, vector in rates.items()
    }
    source = HISTOGRAM if steps else next(iter(rates))
    survival = _survival(steps, length) if steps else survivals[source]
    _check_survival(content, fields, survivals, survival, f"as {source} has")
    return Measurements(acceptance=_build_acceptance(fields, steps, rates, survival))


def _check_survival(
    content: JsonObject,
    fields: Fields,
    survivals: Mapping[str, Sequence[float]],
    survival: Sequence[float],
    why: str,
) -> None:
    """Refuse rates and means that contradict the share of steps that accept at least 1, 2, … draft tokens."""
    for name, shares in survivals.items():
        for position, (got, expected) in enumerate(zip(shares, survival, strict=True)):
            check_equal(fields, f"{name}[{position}]", expected=expected, got=got, within=RATE_ROUNDING, why=why)
    has_lengths = isinstance(content.content.get(BY_LENGTH), dict)
    by_length = fields.mapping(BY_LENGTH) if has_lengths else Fields(content.path, {})
    mean = 1 + sum(survival)
    for means, name in ((fields, MEAN), (by_length, str(len(survival)))):
        if name in means:
            check_equal(means, name, expected=mean, got=means.number(name), within=MEAN_ROUNDING, why=why)


def _build_acceptance(
    fields: Fields, steps: Mapping[int, int], rates: Mapping[str, Sequence[float]], survival: Sequence[float]
) -> ImportedAcceptance:
    kind = "speculation profile"
    if "accept_length_model" in fields and fields.text("accept_length_model") == "measured_per_k":
        kind = f"{kind}; measured with drafts of {len(survival)} tokens"
    if steps:
        return _pool(fields, HISTOGRAM, steps, len(survival), kind)
    if CONDITIONAL not in rates:
        return ImportedAcceptance(table=fields.build(MARGINAL, table_from_rates, survival), kind=kind)
    reached = [1.0, *survival[:-1]]
    conditional = [rate for rate, before in zip(rates[CONDITIONAL], reached, strict=True) if before > 0]
    return ImportedAcceptance(table=fields.build(CONDITIONAL, table_from_conditional, conditional), kind=kind)


SPECDEC_BENCH = Importer(
    name="specdec-bench",
    title="acceptance_rate.json of Model-Optimizer's specdec_bench",
    needs="Acceptance_Length_Histogram",
    matches=lambda file: file.has_key(BENCH_HISTOGRAM),
    read=read_bench,
)
SPECULATION_PROFILE = Importer(
    name="speculation-profile",
    title="speculation_profile.json of Model-Optimizer",
    needs="schema 1.0",
    matches=lambda file: file.has_key(CONDITIONAL, MARGINAL, HISTOGRAM),
    read=read_speculation_profile,
)
