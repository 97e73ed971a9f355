"""Profiling by several processes."""

from treeopt.profiler.processes.processes import Numbers, OneProcess, Processes, Result, what_is_kept

__all__ = ["Numbers", "OneProcess", "Processes", "Result", "what_is_kept"]
