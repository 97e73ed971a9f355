"""Curves and acceptance measured elsewhere: other programs' tables read into records, and into a profile."""

from treeopt.engines.importers.acceptance import KINDS, read_acceptance
from treeopt.engines.importers.acceptance_formats import ACCEPTANCE_FORMATS, AcceptanceFormat
from treeopt.engines.importers.combine import imported_profile, step_latencies, with_imported
from treeopt.engines.importers.imported_latency import ImportedLatency
from treeopt.engines.importers.latency import read_latency

__all__ = [
    "ACCEPTANCE_FORMATS",
    "KINDS",
    "AcceptanceFormat",
    "ImportedLatency",
    "imported_profile",
    "read_acceptance",
    "read_latency",
    "step_latencies",
    "with_imported",
]
