"""Latencies and acceptance that other programs measured, read from their files into records and profiles."""

from treeopt.engines.importers.importer import ImportedLatency, Importer
from treeopt.engines.importers.profiles import imported_profile, step_latencies
from treeopt.engines.importers.read import IMPORTERS, read_acceptance, read_latency
from treeopt.engines.importers.sweep_profile import sweep_profile

__all__ = [
    "IMPORTERS",
    "ImportedLatency",
    "Importer",
    "imported_profile",
    "read_acceptance",
    "read_latency",
    "step_latencies",
    "sweep_profile",
]
