"""Curves and acceptance measured elsewhere: other programs' tables read into records, and into a profile."""

from treeopt.engines.importers.acceptance_formats import ACCEPTANCE_FORMATS, AcceptanceFormat
from treeopt.engines.importers.combine import imported_profile, step_latencies, with_imported
from treeopt.engines.importers.imported_latency import ImportedLatency
from treeopt.engines.importers.importer import Importer
from treeopt.engines.importers.read import KINDS, read_acceptance, read_latency
from treeopt.engines.importers.sweep import sweep_profile
from treeopt.engines.importers.table import IMPORTERS

__all__ = [
    "ACCEPTANCE_FORMATS",
    "IMPORTERS",
    "KINDS",
    "AcceptanceFormat",
    "ImportedLatency",
    "Importer",
    "imported_profile",
    "read_acceptance",
    "read_latency",
    "step_latencies",
    "sweep_profile",
    "with_imported",
]
