"""Acceptance in `acceptance_rate.json` of Model-Optimizer's specdec_bench: steps by the tokens that they yielded.

Acceptance_Length_Histogram: steps by tokens, the target's own included, so from 1 on
Joint_Acceptance_Rate, Conditional_Acceptance_Rate: the same as shares, of all steps and of those that came so far
"""

from collections.abc import Mapping

from treeopt.engines.importers.content import JsonObject, check_equal, read_counts
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.files.fields import Fields

HISTOGRAM, MEAN = "Acceptance_Length_Histogram", "Average_AL"
JOINT, CONDITIONAL = "Joint_Acceptance_Rate", "Conditional_Acceptance_Rate"
ROUNDING = 5e-3


def is_specdec_bench(file: ForeignFile) -> bool:
    """Return whether a file is one object with the histogram."""
    return isinstance(file.json, dict) and HISTOGRAM in file.json


def read_specdec_bench(file: ForeignFile) -> Measurements:
    """Return the counts of the histogram; raises FormatError where the mean or the rates contradict it."""
    content = JsonObject("", file.json).inner(file.path)
    fields = content.read(file.path)
    histogram = read_counts(fields, HISTOGRAM, content.fields.get(HISTOGRAM))
    steps = sum(histogram.values())
    if not steps or min(histogram) < 1:
        raise fields.error(HISTOGRAM, "expected steps of 1 token or more, the target's own included. Got others.")
    if MEAN in fields:
        mean = sum(tokens * count for tokens, count in histogram.items()) / steps
        got = fields.number(MEAN)
        check_equal(fields, MEAN, expected=mean, got=got, within=ROUNDING * mean, why=f"the mean of {HISTOGRAM}")
    _check_rates(fields, histogram)
    accepted = {tokens - 1: count for tokens, count in histogram.items()}
    total = fields.build(HISTOGRAM, pooled, [StepCounts.of_lengths(accepted, max(1, *accepted))], one_sequence=False)
    return Measurements(acceptance=ImportedAcceptance(table=total.table, kind="specdec_bench", positions=steps))


def _check_rates(fields: Fields, histogram: Mapping[int, int]) -> None:
    """Refuse shares of steps with at least so many tokens, and of those with the length before, that are others."""
    steps = sum(histogram.values())
    at_least = {tokens: sum(histogram[length] for length in histogram if length >= tokens) for tokens in histogram}
    before = dict(zip(sorted(histogram), [steps, *(at_least[tokens] for tokens in sorted(histogram))], strict=False))
    for name in (name for name in (JOINT, CONDITIONAL) if name in fields):
        rates = fields.mapping(name)
        for tokens in (tokens for tokens in sorted(histogram) if str(tokens) in rates):
            expected = at_least[tokens] / (steps if name == JOINT else before[tokens])
            got, why = rates.number(str(tokens)), f"as {HISTOGRAM} has it"
            check_equal(rates, str(tokens), expected=expected, got=got, within=ROUNDING, why=why)
