"""Acceptance in the result of `vllm bench serve --save-result`: counters of the benchmark's own window.

spec_decode_num_drafts: steps that drafted
spec_decode_draft_tokens, spec_decode_accepted_tokens: drafted and accepted tokens
spec_decode_per_position_acceptance_rates: of all drafts, those that accepted the token at each position

With --append-result a file holds a line for every run. Servers that do not count their drafts have the rates only.
"""

from collections.abc import Sequence
from typing import NamedTuple

from treeopt.engines.importers.acceptance_tables import table_of_rates
from treeopt.engines.importers.content import check_equal
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.step_counts import StepCounts, pooled
from treeopt.engines.importers.sweep_rows import is_sweep, read_sweep
from treeopt.files.fields import Fields

DRAFTS, DRAFTED, ACCEPTED = "spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens"
RATES = "spec_decode_per_position_acceptance_rates"
SHORT = "shorter drafts count as rejected"


def is_vllm_bench(file: ForeignFile) -> bool:
    """Return whether one of the objects is a result with acceptance by position."""
    return any(RATES in each.fields for each in file.objects)


def read_vllm_bench(file: ForeignFile) -> Measurements:
    """Return the counts by position of all runs together, and the rows of a sweep.

    Raises FormatError for totals that contradict the rates.
    """
    runs = [each.inner(file.path).read(file.path) for each in file.objects if RATES in each.fields]
    sweep = read_sweep(file).sweep if is_sweep(file) else ()
    return Measurements(acceptance=_acceptance(file, runs), sweep=sweep)


def _acceptance(file: ForeignFile, runs: Sequence[Fields]) -> ImportedAcceptance:
    kind = "vLLM benchmark result"
    if len(runs) == 1 and DRAFTS not in runs[0]:
        table = runs[0].build(RATES, table_of_rates, runs[0].numbers(RATES))
        return ImportedAcceptance(table=table, kind=f"{kind}, rates only")
    counts = [_counts(run) for run in runs]
    total = Fields(file.path, {}).build(RATES, pooled, [each.steps for each in counts], one_sequence=False)
    return ImportedAcceptance(
        table=total.table,
        kind=f"{kind}; {SHORT}" if any(each.short for each in counts) else kind,
        positions=sum(each.steps.reached[0] for each in counts),
        texts=total.texts,
    )


class _Counts(NamedTuple):
    steps: StepCounts
    short: bool
    """Whether some steps drafted less than the others."""


def _counts(run: Fields) -> _Counts:
    drafts, rates = run.integer(DRAFTS), run.numbers(RATES)
    run.build(RATES, table_of_rates, rates)  # refuses what is no share, and rates that rise
    accepted = [round(rate * drafts) for rate in rates]
    if ACCEPTED in run:
        expected, within = run.integer(ACCEPTED, least=0), 0.5 * len(rates)  # each count was rounded
        why = f"{ACCEPTED}, over all drafts"
        check_equal(run, RATES, expected=expected, got=sum(accepted), within=within, why=why)
    reached = [drafts, *accepted[:-1]]
    positions = sum(count > 0 for count in reached)
    steps = StepCounts(tuple(reached[:positions]), tuple(accepted[:positions]))
    return _Counts(steps, DRAFTED in run and run.integer(DRAFTED, least=0) < drafts * len(rates))
