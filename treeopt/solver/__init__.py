"""Acceptance table to optimal trees, for every budget and every depth."""

from treeopt.solver.certificate import BEST_FIRST, DYNAMIC_PROGRAM, Certificate
from treeopt.solver.solution import Solution, solve

__all__ = ["BEST_FIRST", "DYNAMIC_PROGRAM", "Certificate", "Solution", "solve"]


def __dir__() -> list[str]:
    return __all__
