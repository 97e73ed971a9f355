"""Acceptance that vLLM writes into its log."""

import re

from treeopt.engines.importers.acceptance_tables import table_of_rates
from treeopt.engines.importers.foreign_file import OPENING, ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields
from treeopt.records.engine import MAX_POSITIONS

LOG_MARK = "Per-position acceptance rate:"

_NUMBER = r"\d{1,15}(?:\.\d{1,17})?"
_LOG_LINE = re.compile(rf"{LOG_MARK}\s{{0,9}}({_NUMBER}(?:,\s{{0,9}}{_NUMBER}){{0,{MAX_POSITIONS}}})")


def is_vllm_log(file: ForeignFile) -> bool:
    """Return whether a file is text, no JSON, with a line of rates."""
    return LOG_MARK in file.text and not file.text.lstrip().startswith(OPENING)


def read_vllm_log(file: ForeignFile) -> Measurements:
    """Return the acceptance of the last line that has rates; raises FormatError where none has."""
    last = file.text.rfind(LOG_MARK)
    while last >= 0:
        if found := _LOG_LINE.match(file.text, last):
            rates = [float(rate) for rate in found[1].split(",")]
            table = Fields(file.path, {}).build("content", table_of_rates, rates)
            return Measurements(acceptance=ImportedAcceptance(table=table, kind="vLLM log, last line"))
        last = file.text.rfind(LOG_MARK, 0, last)
    raise file.error("content", f"expected numbers with commas between after {LOG_MARK!r}. Got none.")
