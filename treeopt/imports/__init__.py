"""Curves and acceptance measured elsewhere: other programs' tables read into records, and into a profile."""

from treeopt.imports.acceptance import KINDS, read_acceptance
from treeopt.imports.combine import imported_profile, step_latencies, with_imported
from treeopt.imports.imported_latency import ImportedLatency
from treeopt.imports.latency import read_latency

__all__ = [
    "KINDS",
    "ImportedLatency",
    "imported_profile",
    "read_acceptance",
    "read_latency",
    "step_latencies",
    "with_imported",
]
