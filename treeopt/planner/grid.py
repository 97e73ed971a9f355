"""A grid of trees to try a plan's predictions on, chains, the solver's and the choice, and how far they came true."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.records.results import Measured, PacedPrediction
from treeopt.trees import TokenTree, chain

CHAIN_DEPTHS = (1, 2, 4, 6, 8, 12, 16)
NODES = (4, 8, 16, 32, 64, 128)
DEPTHS = (2, 4, 8, 16)


def grid(plan: Plan) -> tuple[Option, ...]:
    """Return predictions for trees that differ in all that predictions are made of, each tree once, the choice first.

    Where plain decoding is the choice, the fastest tree comes first.  Chains differ in depth alone; the solver's trees
    of one size in depth and draft widths.
    """
    solution = plan.solution
    chains = [chain(depth) for depth in CHAIN_DEPTHS if depth <= min(solution.max_depth, solution.max_nodes - 1)]
    solved = [
        solution.tree(nodes, depth)
        for nodes in NODES
        for depth in DEPTHS
        if nodes <= solution.max_nodes and depth <= min(solution.max_depth, nodes - 1)
    ]
    trees: list[TokenTree] = []
    for tree in (plan.choice.tree, *chains, *solved):
        if tree.nodes > 1 and tree not in trees:
            trees.append(tree)
    found = [plan.model.predict(tree) for tree in trees]
    if plan.choice.tree.nodes == 1:
        found.insert(0, found.pop(int(np.argmax([each.speedup.value for each in found]))))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One tree, as predicted and as measured."""

    predicted: Option
    measured: Measured
    at_pace: PacedPrediction | None = None

    @property
    def tokens_error(self) -> float:
        """Predicted tokens per step over measured, less 1."""
        return self.predicted.tokens_per_step.value / self.measured.tokens_per_step - 1

    @property
    def step_error(self) -> float:
        """Predicted seconds of a step over measured, less 1."""
        return self.predicted.step_s.value / self.measured.step_s - 1

    @property
    def speedup_error(self) -> float:
        """Predicted speedup over measured, less 1."""
        return self.predicted.speedup.value / self.measured.speedup.value - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSummary:
    """What the rows come to; errors are means of absolute ones."""

    tokens_error: float
    step_error: float
    speedup_error: float
    chosen_over_best: float
    """Measured speedup of the chosen tree over the best measured one."""


def summary(rows: Sequence[GridRow]) -> GridSummary:
    """Return what the rows come to; the first is the chosen tree's."""
    best = max(row.measured.speedup.value for row in rows)
    return GridSummary(
        tokens_error=sum(abs(row.tokens_error) for row in rows) / len(rows),
        step_error=sum(abs(row.step_error) for row in rows) / len(rows),
        speedup_error=sum(abs(row.speedup_error) for row in rows) / len(rows),
        chosen_over_best=rows[0].measured.speedup.value / best,
    )
