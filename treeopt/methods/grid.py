"""A grid of trees, each predicted from the profile and decoded with."""

from collections.abc import Sequence

from treeopt.planner import Option, Plan, StepModel
from treeopt.planner.grid import GridRow, grid
from treeopt.planner.pace import predict_at_pace
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.decoding import Decoding
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
    """Decode prompts plainly and with every tree of a plan's grid; return the rows, the chosen tree first.

    Args:
        plan: what is predicted, and under which rule.
        pair: the models.
        workload: prompts, how far each is continued, and how often.
        lossy: allow rules that change the output's distribution.
        show_progress: whether a bar goes to standard error.
    """
    predicted, model = grid(plan), plan.model
    trees = [each.tree for each in predicted]
    measured = bench_trees(
        pair.target,
        pair.draft_model,
        trees,
        workload,
        Decoding.as_measured(model.acceptance, lossy=lossy),
        references=reference_passes(model, pair.target, pair.draft, trees, workload.prompts),
        show_progress=show_progress,
    )
    return grid_rows(predicted, measured, model)


def grid_rows(
    predicted: Sequence[Option], measured: Sequence[Measured], model: StepModel | None = None
) -> tuple[GridRow, ...]:
    """Return the rows of a grid, the chosen tree first, with what a model predicts at the pace of the measurements."""
    return tuple(
        GridRow(predicted=one, measured=other, at_pace=predict_at_pace(model, one.tree, other.pace))
        for one, other in zip(predicted, measured, strict=True)
    )
