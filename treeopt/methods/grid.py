"""Whether predictions come true: a grid of trees, each decoded for real beside what the profile said of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.planner import Candidate, Plan
from treeopt.planner.grid import grid
from treeopt.profiler import Measured
from treeopt.profiler.bench.compare import bench_as_measured
from treeopt.runtime.models.pair import ModelPair


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One tree, as predicted and as measured."""

    predicted: Candidate
    measured: Measured

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


def measured_grid(
    plan: Plan,
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    repeats: int = 3,
    lossy: bool = False,
    show_progress: bool = True,
) -> tuple[GridRow, ...]:
    """Decode prompts plainly and with every tree of a plan's grid in turn; return the rows, the chosen tree first.

    Args:
        plan: what is predicted, and under which rule.
        pair: the models.
        prompts: token ids.
        max_new_tokens: of each prompt; by default as many as the profile measured.
        repeats: times each prompt is decoded.
        lossy: allow rules that change the text's distribution.
        show_progress: whether a bar goes to standard error.
    """
    predicted = grid(plan)
    measured = bench_as_measured(
        pair,
        [each.tree for each in predicted],
        prompts,
        plan.model.acceptance,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        lossy=lossy,
        show_progress=show_progress,
    )
    return grid_rows(predicted, measured)


def grid_rows(predicted: Sequence[Candidate], measured: Sequence[Measured]) -> tuple[GridRow, ...]:
    """Return the rows of a grid, the chosen tree first."""
    return tuple(GridRow(predicted=one, measured=other) for one, other in zip(predicted, measured, strict=True))


def summary(rows: Sequence[GridRow]) -> GridSummary:
    """Return what the rows come to; the first is the chosen tree's."""
    best = max(row.measured.speedup.value for row in rows)
    return GridSummary(
        tokens_error=float(np.mean([abs(row.tokens_error) for row in rows])),
        step_error=float(np.mean([abs(row.step_error) for row in rows])),
        speedup_error=float(np.mean([abs(row.speedup_error) for row in rows])),
        chosen_over_best=rows[0].measured.speedup.value / best,
    )
