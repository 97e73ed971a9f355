"""Speculation profiles: the acceptance of a draft checkpoint, as Model-Optimizer's `speculation_profile.json` has it.

Schema 1.0, as `specdec_bench/speculation_profile.py` of Model-Optimizer's pull request 2247 writes it:

    marginal_accept_rates[i] = P(a step accepts at least i + 1 draft tokens)
    conditional_accept_rates[i] = the same, given that it accepted at least i
    acceptance_length_histogram: tokens that a step yields, the target's own one included → steps
    mean_accept_length = 1 + sum of the marginal rates = the histogram's mean

Dynamo's mocker reads the conditional rates, vLLM's synthetic acceptance the marginal ones.  Other fields are let be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from treeopt.engines.importers.acceptance_tables import table_of_conditional, table_of_rates
from treeopt.engines.importers.content import MOST, JsonObject, check_equal, read_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.files.fields import Fields

VERSION = "1.0"
KIND = "speculation profile"
CONDITIONAL, MARGINAL = "conditional_accept_rates", "marginal_accept_rates"
HISTOGRAM, MEAN, BY_LENGTH = "acceptance_length_histogram", "mean_accept_length", "accept_length_by_k"
LENGTH, MOST_LENGTH = "num_speculative_tokens", "max_supported_k"
METHOD, PREFIX = "verification_method", "longest_prefix"
MARKS = frozenset({CONDITIONAL, MARGINAL, HISTOGRAM})
RATE_ROUNDING = 1e-3
"""Three decimals, of rates that are written twice."""
MEAN_ROUNDING = 0.02
"""What Model-Optimizer itself allows between the mean and the rates; the vectors are cut short where it is more."""


def is_speculation_profile(file: ForeignFile) -> bool:
    """Return whether a file is one object, a speculation profile of whatever version."""
    return isinstance(file.json, dict) and bool(file.json.keys() & MARKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """The two vectors and the histogram, as far as they are there."""

    conditional: Sequence[float] | None
    marginal: Sequence[float] | None
    steps: Mapping[int, int] | None
    """How many steps accepted so many draft tokens."""

    @property
    def survival(self) -> list[float]:
        """The marginal rates, of whichever is there."""
        if self.marginal is not None:
            return list(self.marginal)
        return list(accumulate(self.conditional or (), mul))


def read_speculation_profile(file: ForeignFile) -> Measurements:
    """Return the acceptance of a speculation profile: the counts of its histogram, or else its rates.

    Raises FormatError naming the field: for other versions, profiles of which nothing was measured, and fields that
    contradict each other.
    """
    whole = JsonObject("", file.json).inner(file.path)
    fields = whole.read(file.path)
    version = fields.text("schema_version")
    if version != VERSION:
        raise fields.error("schema_version", f"expected {VERSION!r}. Got {version!r:.40}: write it as that version.")
    _check_measured(fields, whole.fields.get("measured"))
    rates = _rates(fields, whole.fields.get(HISTOGRAM))
    length = _length(fields, rates)
    _check_rates(fields, rates)
    _check_means(fields, rates, length, whole.fields.get(BY_LENGTH))
    return Measurements(acceptance=_acceptance(fields, rates, length))


def _acceptance(fields: Fields, rates: _Rates, length: int) -> ImportedAcceptance:
    kind = KIND
    if "accept_length_model" in fields and fields.text("accept_length_model") == "measured_per_k":
        kind = f"{KIND}; measured with drafts of {length} tokens"
    if rates.steps:
        total = fields.build(HISTOGRAM, pooled, [StepCounts.of_lengths(rates.steps, length)], one_sequence=False)
        return ImportedAcceptance(table=total.table, kind=kind, positions=sum(rates.steps.values()))
    if rates.conditional is not None:
        reached = [
            rate for rate, before in zip(rates.conditional, [1.0, *rates.survival[:-1]], strict=True) if before > 0
        ]
        return ImportedAcceptance(table=fields.build(CONDITIONAL, table_of_conditional, reached), kind=kind)
    return ImportedAcceptance(table=fields.build(MARGINAL, table_of_rates, rates.marginal), kind=kind)


def _check_measured(fields: Fields, measured: object) -> None:
    if measured is not None and measured is not True:
        reason = f"expected true. Got {measured!s:.40}: it is a placeholder, measure the draft with specdec_bench."
        raise fields.error("measured", reason)
    if METHOD in fields and (found := fields.text(METHOD)) != PREFIX:
        reason = f"expected {PREFIX!r}, where a token counts after all before it. Got {found!r:.40}: measure it so."
        raise fields.error(METHOD, reason)


def _rates(fields: Fields, histogram: object) -> _Rates:
    steps = None
    if HISTOGRAM in fields:
        tokens = read_counts(fields, HISTOGRAM, histogram)
        if not tokens or min(tokens) < 1:
            reason = (
                "expected steps of at least 1 token, the target's own one included. Got others: has it drafted yet?"
            )
            raise fields.error(HISTOGRAM, reason)
        steps = {count - 1: found for count, found in tokens.items()}
    conditional, marginal = _vector(fields, CONDITIONAL), _vector(fields, MARGINAL)
    if conditional is None and marginal is None and ("vectors_unavailable_reason" in fields or steps is None):
        raise fields.error(CONDITIONAL, "is missing, and the marginal rates too. Take a profile of longest_prefix.")
    return _Rates(conditional=conditional, marginal=marginal, steps=steps)


def _vector(fields: Fields, field: str) -> list[float] | None:
    if field not in fields:
        return None
    rates = fields.numbers(field)
    if not 0 < len(rates) <= MOST or not all(0 <= rate <= 1 for rate in rates):
        raise fields.error(field, f"expected 1 to {MOST} rates, each from 0 to 1. Got others: is it torn?")
    return rates


def _length(fields: Fields, rates: _Rates) -> int:
    """Return the draft tokens of a step; raises FormatError for vectors of another length, and longer steps."""
    vectors = [(name, each) for name, each in ((CONDITIONAL, rates.conditional), (MARGINAL, rates.marginal)) if each]
    length = fields.integer(LENGTH) if LENGTH in fields else None
    most = max(rates.steps, default=0) if rates.steps else 0
    expected = length or (len(vectors[0][1]) if vectors else max(1, most))
    for name, each in vectors:
        if len(each) != expected:
            raise fields.error(
                name, f"expected {expected} rates, one per draft token. Got {len(each)}: write all of them."
            )
    if most > expected:
        reason = f"expected at most {expected + 1} tokens a step, {expected} of them drafted. Got {most + 1}: write all rates."
        raise fields.error(HISTOGRAM, reason)
    if MOST_LENGTH in fields and (supported := fields.integer(MOST_LENGTH)) < expected:
        raise fields.error(MOST_LENGTH, f"expected at least the {expected} that were measured. Got {supported}.")
    return expected


def _check_rates(fields: Fields, rates: _Rates) -> None:
    if rates.marginal is not None:
        for place, (before, after) in enumerate(pairwise(rates.marginal), start=1):
            if after > before:
                reason = f"expected never to rise, each counted over all steps. Got {after:g} after {before:g}."
                raise fields.error(f"{MARGINAL}[{place}]", reason)
    if rates.marginal is not None and rates.conditional is not None:
        for place, (got, expected) in enumerate(zip(rates.marginal, accumulate(rates.conditional, mul), strict=True)):
            why = f"the product of the {CONDITIONAL} up to there"
            check_equal(fields, f"{MARGINAL}[{place}]", expected=expected, got=got, within=RATE_ROUNDING, why=why)
    if rates.steps:
        total = sum(rates.steps.values())
        for place, got in enumerate(rates.survival):
            expected = sum(count for length, count in rates.steps.items() if length > place) / total
            field = f"{CONDITIONAL if rates.marginal is None else MARGINAL}[{place}]"
            check_equal(fields, field, expected=expected, got=got, within=RATE_ROUNDING, why=f"as {HISTOGRAM} says")


def _check_means(fields: Fields, rates: _Rates, length: int, by_length: object) -> None:
    """Refuse means that are not those of the rates, and means of other lengths that no draft can have."""
    if rates.steps:
        total = sum(rates.steps.values())
        expected, why = 1 + sum(kept * count for kept, count in rates.steps.items()) / total, f"the mean of {HISTOGRAM}"
    else:
        expected, why = 1 + sum(rates.survival), "1 + the sum of the marginal rates"
    if MEAN in fields:
        check_equal(fields, MEAN, expected=expected, got=fields.number(MEAN), within=MEAN_ROUNDING, why=why)
    if BY_LENGTH not in fields or not isinstance(by_length, dict):
        return
    means = fields.mapping(BY_LENGTH)
    for name in by_length:
        drafted = int(name) if name.isascii() and name.isdecimal() and len(name) < 6 else 0
        if drafted < 1:
            raise means.error(name, "expected a number of draft tokens as name. Got another: name it so.")
        mean = means.number(name, least=1.0, most=drafted + 1.0)
        if drafted == length:
            check_equal(means, name, expected=expected, got=mean, within=MEAN_ROUNDING, why=why)
