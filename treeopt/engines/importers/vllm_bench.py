"""Acceptance in the result of `vllm bench serve --save-result`: counters of the benchmark's own window.

spec_decode_num_drafts: steps that drafted
spec_decode_draft_tokens, spec_decode_accepted_tokens: drafted and accepted tokens
spec_decode_per_position_acceptance_rates: of all drafts, those that accepted the token at each position
"""

from treeopt.engines.importers.acceptance_tables import table_of_counts
from treeopt.engines.importers.content import JsonObject, check_equal
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.sweep_rows import is_sweep, read_sweep

DRAFTS, DRAFTED, ACCEPTED = "spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens"
RATES = "spec_decode_per_position_acceptance_rates"
SHORT = "shorter drafts count as rejected"


def is_vllm_bench(file: ForeignFile) -> bool:
    """Return whether a file is one result with counters of speculation by position."""
    return isinstance(file.json, dict) and file.json.keys() >= {DRAFTS, RATES}


def read_vllm_bench(file: ForeignFile) -> Measurements:
    """Return the counts by position, and the row of a sweep; raises FormatError for totals that contradict them."""
    fields = JsonObject("", file.json).inner(file.path).read(file.path)
    drafts, rates = fields.integer(DRAFTS), fields.numbers(RATES)
    accepted = [round(rate * drafts) for rate in rates]
    within = 0.5 * len(rates)  # each count was rounded
    kind = "vLLM benchmark result"
    if ACCEPTED in fields:
        total = fields.integer(ACCEPTED, least=0)
        check_equal(fields, RATES, expected=total, got=sum(accepted), within=within, why=f"{ACCEPTED}, over all drafts")
    if DRAFTED in fields and fields.integer(DRAFTED, least=0) < drafts * len(rates):
        kind = f"{kind}; {SHORT}"
    table = fields.build(RATES, table_of_counts, float(drafts), accepted)
    return Measurements(
        acceptance=ImportedAcceptance(table=table, kind=kind, positions=drafts),
        sweep=read_sweep(file).sweep if is_sweep(file) else (),
    )
