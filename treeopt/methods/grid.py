"""Whether predictions come true: a grid of trees, each decoded for real beside what the profile said of it."""

from collections.abc import Sequence

from treeopt.planner import Option, Plan
from treeopt.planner.grid import GridRow, grid
from treeopt.profiler.bench.compare import Workload, bench_as_measured
from treeopt.records.results import Measured
from treeopt.runtime.models.pair import ModelPair


def measured_grid(
    plan: Plan,
    pair: ModelPair,
    workload: Workload,
    *,
    lossy: bool = False,
    show_progress: bool = True,
) -> tuple[GridRow, ...]:
    """Decode prompts plainly and with every tree of a plan's grid in turn; return the rows, the chosen tree first.

    Args:
        plan: what is predicted, and under which rule.
        pair: the models.
        workload: prompts, how far each is continued, and how often.
        lossy: allow rules that change the text's distribution.
        show_progress: whether a bar goes to standard error.
    """
    predicted = grid(plan)
    measured = bench_as_measured(
        pair,
        [each.tree for each in predicted],
        workload,
        plan.model.acceptance,
        lossy=lossy,
        show_progress=show_progress,
    )
    return grid_rows(predicted, measured)


def grid_rows(predicted: Sequence[Option], measured: Sequence[Measured]) -> tuple[GridRow, ...]:
    """Return the rows of a grid, the chosen tree first."""
    return tuple(GridRow(predicted=one, measured=other) for one, other in zip(predicted, measured, strict=True))
