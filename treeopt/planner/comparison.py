"""Given trees under one profile: their predictions, and the fastest trees of the same sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.errors import InfeasibleError, reason
from treeopt.planner.fastest import solution_speedups
from treeopt.planner.model import StepModel
from treeopt.planner.options import Option
from treeopt.solver import Solution, solve
from treeopt.tabular import Row, Tabular, heading_html, table_html
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTree:
    """One tree under a profile."""

    tree: TokenTree
    prediction: Option | None
    """None beyond what was measured."""
    unknown: str
    """The reason why there is no prediction; empty if there is one."""
    same_size: Option | None
    """The fastest of this tree and of the trees of its size with the most tokens at each depth."""


class Comparison(tuple[ComparedTree, ...], Tabular):
    """Trees under one profile, in the order given; a tuple that is a table too."""

    __slots__ = ()

    def to_records(self) -> list[Row]:
        """Return a row for every tree; without a prediction its numbers are None and `unknown` is the reason."""
        return [
            {
                "nodes": row.tree.nodes,
                "depth": row.tree.max_depth,
                "tokens_per_step": row.prediction and row.prediction.tokens_per_step.value,
                "step_s": row.prediction and row.prediction.step_s.value,
                "speedup": row.prediction and row.prediction.speedup.value,
                "best_of_size": row.same_size and row.same_size.speedup.value,
                "unknown": row.unknown or None,
            }
            for row in self
        ]

    def _repr_html_(self) -> str:
        return heading_html(f"{len(self)} tree{'s' * (len(self) != 1)}") + table_html(self.to_records())


def compare(model: StepModel, trees: Sequence[TokenTree]) -> Comparison:
    """Return each tree with its prediction and the fastest of its size.

    There is no prediction for trees that are deeper than acceptance was measured, or larger than passes were timed.
    """
    predictions, reasons = dict[TokenTree, Option](), dict[TokenTree, str]()
    for tree in trees:
        try:
            predictions[tree] = model.predict(tree)
        except InfeasibleError as error:
            reasons[tree] = reason(error)
    solution = solve(model.acceptance.table, max((tree.nodes for tree in predictions), default=1))
    return Comparison(
        ComparedTree(
            tree=tree,
            prediction=predictions.get(tree),
            unknown=reasons.get(tree, ""),
            same_size=_fastest_of_size(model, solution, predictions[tree]) if tree in predictions else None,
        )
        for tree in trees
    )


def _fastest_of_size(model: StepModel, solution: Solution, option: Option) -> Option:
    nodes = option.tree.nodes
    speedups = solution_speedups(solution, model.costs)[:, nodes]
    speedups = np.where(solution.tree_nodes[:, nodes] == nodes, speedups, 0.0)
    if speedups.max(initial=0.0) <= option.speedup.value:
        return option
    solved = model.predict(solution.tree(nodes, int(speedups.argmax())))
    return max(option, solved, key=lambda option: option.speedup.value)  # the solver ignores dependence between depths
