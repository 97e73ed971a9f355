"""Acceptance that Model-Optimizer writes: `acceptance_rate.json` of its specdec_bench, and `speculation_profile.json`.

`acceptance_rate.json`:

    Acceptance_Length_Histogram: steps by the tokens that they yielded, including the target's own, so from 1
    Joint_Acceptance_Rate: share of all steps that yielded at least so many tokens
    Conditional_Acceptance_Rate: the same, of the steps that reached the length before

`speculation_profile.json`, schema 1.0, as `specdec_bench/speculation_profile.py` of pull request 2247 writes it:

    marginal_accept_rates[i] = P(a step accepts at least i + 1 draft tokens)
    conditional_accept_rates[i] = the same, given that it accepted at least i
    acceptance_length_histogram: steps by the tokens that they yielded, including the target's own
    mean_accept_length = 1 + sum of the marginal rates = the histogram's mean

Dynamo's mocker reads the conditional rates, vLLM's synthetic acceptance the marginal ones. Other fields are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from treeopt.engines.importers.acceptance_tables import (
    acceptance_from_conditional,
    acceptance_from_rates,
    pool_lengths,
)
from treeopt.engines.importers.foreign_file import MAX_STEP_TOKENS, ForeignFile, JsonObject, check_equal
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.files.fields import Fields

BENCH_HISTOGRAM, BENCH_MEAN = "Acceptance_Length_Histogram", "Average_AL"
BENCH_JOINT, BENCH_CONDITIONAL = "Joint_Acceptance_Rate", "Conditional_Acceptance_Rate"
BENCH_ROUNDING = 5e-3

VERSION = "1.0"
CONDITIONAL, MARGINAL = "conditional_accept_rates", "marginal_accept_rates"
HISTOGRAM, MEAN, BY_LENGTH = "acceptance_length_histogram", "mean_accept_length", "accept_length_by_k"
LENGTH, MAX_LENGTH = "num_speculative_tokens", "max_supported_k"
METHOD, PREFIX = "verification_method", "longest_prefix"
RATE_ROUNDING = 1e-3
"""Three decimals."""
MEAN_ROUNDING = 0.02
"""What Model-Optimizer itself allows between the mean and the rates; the vectors are truncated where it is more."""


def read_bench(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of the histogram; raises FormatError for a mean or rates that contradict it."""
    fields = file.objects[0].inner()
    histogram = fields.read_counts(BENCH_HISTOGRAM)
    steps = sum(histogram.values())
    if not steps or min(histogram) < 1:
        raise fields.error(BENCH_HISTOGRAM, "expected steps of 1 token or more, the target's own included. Got others.")
    mean = sum(tokens * count for tokens, count in histogram.items()) / steps
    check_equal(fields, BENCH_MEAN, mean, f"the mean of {BENCH_HISTOGRAM}", within=BENCH_ROUNDING * mean)
    _check_bench_rates(fields, histogram)
    accepted = {tokens - 1: count for tokens, count in histogram.items()}
    return file.build(BENCH_HISTOGRAM, pool_lengths, [accepted], "specdec_bench", by_request=False)


def _check_bench_rates(fields: Fields, histogram: Mapping[int, int]) -> None:
    steps = sum(histogram.values())
    lengths = sorted(histogram)
    reached = [sum(histogram[longer] for longer in lengths if longer >= length) for length in lengths]
    for name, totals in ((BENCH_JOINT, [steps] * len(lengths)), (BENCH_CONDITIONAL, [steps, *reached[:-1]])):
        if name not in fields:
            continue
        rates = fields.mapping(name)
        for length, count, total in zip(lengths, reached, totals, strict=True):
            check_equal(rates, str(length), count / total, f"as in {BENCH_HISTOGRAM}", within=BENCH_ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """The two vectors and the histogram; None if the profile does not contain them."""

    conditional: Sequence[float] | None
    marginal: Sequence[float] | None
    steps: Mapping[int, int] | None
    """Steps by accepted draft tokens."""

    @property
    def survival(self) -> list[float]:
        """The marginal rates, computed if only the conditional ones are known."""
        if self.marginal is not None:
            return list(self.marginal)
        return list(accumulate(self.conditional or (), mul))


def read_speculation_profile(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of the histogram, otherwise that of the rates.

    Raises FormatError naming the field, for other versions, placeholders, and fields that contradict each other.
    """
    fields = file.objects[0].inner()
    version = fields.text("schema_version")
    if version != VERSION:
        raise fields.error("schema_version", f"expected {VERSION!r}. Got {version!r:.40}: write it as that version.")
    measured = fields.content.get("measured", True)
    if measured is not True:
        reason = f"expected true. Got {measured!s:.40}: it is a placeholder, measure the draft with specdec_bench."
        raise fields.error("measured", reason)
    if METHOD in fields and (method := fields.text(METHOD)) != PREFIX:
        reason = f"expected {PREFIX!r}, where a token counts after all before it. Got {method!r:.40}: measure it so."
        raise fields.error(METHOD, reason)
    rates = _read_rates(fields)
    length = _read_length(fields, rates)
    _check_rates(fields, rates)
    _check_means(fields, rates, length)
    return _build_acceptance(fields, rates, length)


def _read_rates(fields: JsonObject) -> _Rates:
    steps = None
    if HISTOGRAM in fields:
        tokens = fields.read_counts(HISTOGRAM)
        if not tokens or min(tokens) < 1:
            reason = (
                "expected steps of at least 1 token, the target's own one included. Got others: has it drafted yet?"
            )
            raise fields.error(HISTOGRAM, reason)
        steps = {length - 1: count for length, count in tokens.items()}
    conditional, marginal = _read_vector(fields, CONDITIONAL), _read_vector(fields, MARGINAL)
    if conditional is None and marginal is None and ("vectors_unavailable_reason" in fields or steps is None):
        raise fields.error(CONDITIONAL, "is missing, and the marginal rates too. Take a profile of longest_prefix.")
    return _Rates(conditional=conditional, marginal=marginal, steps=steps)


def _read_vector(fields: Fields, field: str) -> list[float] | None:
    if field not in fields:
        return None
    rates = fields.numbers(field)
    if not 0 < len(rates) <= MAX_STEP_TOKENS or not all(0 <= rate <= 1 for rate in rates):
        raise fields.error(
            field, f"expected 1 to {MAX_STEP_TOKENS} rates, each from 0 to 1. Got others: is the file complete?"
        )
    return rates


def _read_length(fields: Fields, rates: _Rates) -> int:
    """Return the draft tokens of a step; raises FormatError for vectors of another length, and longer steps."""
    vectors = [
        (name, vector) for name, vector in ((CONDITIONAL, rates.conditional), (MARGINAL, rates.marginal)) if vector
    ]
    longest = max(rates.steps, default=0) if rates.steps else 0
    length = fields.integer(LENGTH) if LENGTH in fields else len(vectors[0][1]) if vectors else max(1, longest)
    for name, vector in vectors:
        if len(vector) != length:
            raise fields.error(
                name, f"expected {length} rates, one per draft token. Got {len(vector)}: write all of them."
            )
    if longest > length:
        reason = f"expected at most {length + 1} tokens a step, {length} of them drafted. Got {longest + 1}: write all rates."
        raise fields.error(HISTOGRAM, reason)
    if MAX_LENGTH in fields and (supported := fields.integer(MAX_LENGTH)) < length:
        raise fields.error(MAX_LENGTH, f"expected at least the {length} that were measured. Got {supported}.")
    return length


def _check_rates(fields: Fields, rates: _Rates) -> None:
    if rates.marginal is not None:
        for position, (before, after) in enumerate(pairwise(rates.marginal), start=1):
            if after > before:
                reason = f"expected never to rise, each counted over all steps. Got {after:g} after {before:g}."
                raise fields.error(f"{MARGINAL}[{position}]", reason)
    if rates.marginal is not None and rates.conditional is not None:
        products = accumulate(rates.conditional, mul)
        for position, (got, expected) in enumerate(zip(rates.marginal, products, strict=True)):
            why = f"the product of the {CONDITIONAL} up to there"
            check_equal(fields, f"{MARGINAL}[{position}]", expected, why, within=RATE_ROUNDING, got=got)
    if rates.steps:
        total = sum(rates.steps.values())
        for position, got in enumerate(rates.survival):
            expected = sum(count for length, count in rates.steps.items() if length > position) / total
            field = f"{CONDITIONAL if rates.marginal is None else MARGINAL}[{position}]"
            check_equal(fields, field, expected, f"as in {HISTOGRAM}", within=RATE_ROUNDING, got=got)


def _check_means(fields: JsonObject, rates: _Rates, length: int) -> None:
    """Refuse means that contradict the rates, and means of other lengths that no draft can have."""
    if rates.steps:
        accepted = sum(tokens * count for tokens, count in rates.steps.items())
        mean, why = 1 + accepted / sum(rates.steps.values()), f"the mean of {HISTOGRAM}"
    else:
        mean, why = 1 + sum(rates.survival), "1 + the sum of the marginal rates"
    check_equal(fields, MEAN, mean, why, within=MEAN_ROUNDING)
    by_length = fields.content.get(BY_LENGTH)
    if not isinstance(by_length, dict):
        return
    means = fields.mapping(BY_LENGTH)
    for name in by_length:
        drafted = int(name) if name.isascii() and name.isdecimal() and len(name) < 6 else 0
        if drafted < 1:
            raise means.error(name, "expected a number of draft tokens as name. Got another: name it so.")
        got = means.number(name, least=1.0, most=drafted + 1.0)
        if drafted == length:
            check_equal(means, name, mean, why, within=MEAN_ROUNDING, got=got)


def _build_acceptance(fields: Fields, rates: _Rates, length: int) -> ImportedAcceptance:
    kind = "speculation profile"
    if "accept_length_model" in fields and fields.text("accept_length_model") == "measured_per_k":
        kind = f"{kind}; measured with drafts of {length} tokens"
    if rates.steps:
        return fields.build(HISTOGRAM, pool_lengths, [rates.steps], kind, depth=length, by_request=False)
    if rates.conditional is None:
        return fields.build(MARGINAL, acceptance_from_rates, rates.marginal, kind)
    reached = [1.0, *rates.survival[:-1]]
    conditional = [rate for rate, survival in zip(rates.conditional, reached, strict=True) if survival > 0]
    return fields.build(CONDITIONAL, acceptance_from_conditional, conditional, kind)


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
