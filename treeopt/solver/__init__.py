"""Acceptance table to optimal trees, for every budget and every depth."""

from treeopt.solver.solution import BEST_FIRST, DYNAMIC_PROGRAM, Certificate, Solution, solve

__all__ = ["BEST_FIRST", "DYNAMIC_PROGRAM", "Certificate", "Solution", "solve"]


def __dir__() -> list[str]:
    return __all__
