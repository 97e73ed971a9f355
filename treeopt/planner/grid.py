"""A grid of trees to try a plan's predictions on: chains, the solver's and the choice."""

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
