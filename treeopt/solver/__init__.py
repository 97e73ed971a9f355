"""Acceptance table to optimal trees, for every budget and every depth."""

from treeopt.solver.solution import Solution, solve

__all__ = ["Solution", "solve"]
