"""Trees side by side under one profile: what each comes to, and what better ones of its size would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.errors import InfeasibleError, reason
from treeopt.planner.fastest import speeds
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
    """None where the profile cannot tell."""
    unknown: str
    """Why the profile cannot tell; empty where it can."""
    same_size: Option | None
    """The fastest tree of exactly as many nodes, of those with the most tokens at each depth, and this one itself."""


class Comparison(tuple[ComparedTree, ...], Tabular):
    """Trees under one profile, in the order given; a tuple that is a table too."""

    __slots__ = ()

    def to_records(self) -> list[Row]:
        """Return a row for every tree; what is not predicted is None, and `unknown` says why."""
        return [
            {
                "nodes": each.tree.nodes,
                "depth": each.tree.max_depth,
                "tokens_per_step": _value(each.prediction, "tokens_per_step"),
                "step_s": _value(each.prediction, "step_s"),
                "speedup": _value(each.prediction, "speedup"),
                "best_of_size": _value(each.same_size, "speedup"),
                "unknown": each.unknown or None,
            }
            for each in self
        ]

    def _repr_html_(self) -> str:
        return heading_html(f"{len(self)} tree{'s' * (len(self) != 1)}") + table_html(self.to_records())


def _value(option: Option | None, name: str) -> float | None:
    return None if option is None else float(getattr(option, name).value)


def compare(model: StepModel, trees: Sequence[TokenTree]) -> Comparison:
    """Return each tree with its prediction and the best of its size.

    A tree deeper than acceptance was measured, or larger than passes were timed, is not predicted.
    """
    predicted = [_prediction(model, tree) for tree in trees]
    largest = max((each.tree.nodes for each in predicted if isinstance(each, Option)), default=1)
    solution = solve(model.acceptance.table, largest)
    return Comparison(
        ComparedTree(
            tree=tree,
            prediction=each if isinstance(each, Option) else None,
            unknown="" if isinstance(each, Option) else each,
            same_size=_same_size(model, solution, each) if isinstance(each, Option) else None,
        )
        for tree, each in zip(trees, predicted, strict=True)
    )


def _prediction(model: StepModel, tree: TokenTree) -> Option | str:
    """Return the prediction, or why there is none."""
    try:
        return model.predict(tree)
    except InfeasibleError as error:
        return reason(error)


def _same_size(model: StepModel, solution: Solution, given: Option) -> Option:
    nodes = given.tree.nodes
    row = np.where(solution.tree_nodes[:, nodes] == nodes, speeds(solution, model.costs)[:, nodes], 0.0)
    if row.max(initial=0.0) <= given.speedup.value:
        return given
    return model.predict(solution.tree(nodes, int(row.argmax())))
