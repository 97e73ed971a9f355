"""Benchmark a grid of trees and compare it to the predictions."""

from treeopt.planner import Plan
from treeopt.planner.benchmarks import GridRow, predict_at_pace, predict_grid
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.decoding import Decoding
from treeopt.runtime.models.pair import ModelPair


def bench_grid(
    plan: Plan,
    pair: ModelPair,
    workload: Workload,
    *,
    lossy: bool = False,
    show_progress: bool = True,
) -> tuple[GridRow, ...]:
    """Benchmark every tree of a plan's grid and return the rows, the chosen tree first, with predictions at the measured pace.

    Args:
        plan: provides the trees, their predictions and the rule.
        pair: the models.
        workload: prompts, new tokens and rounds.
        lossy: allow rules that change the output's distribution.
        show_progress: print a progress bar to standard error.
    """
    predicted, model = predict_grid(plan), plan.model
    trees = [option.tree for option in predicted]
    measured = bench_trees(
        pair.target,
        pair.draft_model,
        trees,
        workload,
        Decoding.as_measured(model.acceptance, lossy=lossy),
        references=reference_passes(model, pair.target, pair.draft, trees, workload.prompts),
        show_progress=show_progress,
    )
    return tuple(
        GridRow(predicted=option, measured=measurement, at_pace=predict_at_pace(model, option.tree, measurement.pace))
        for option, measurement in zip(predicted, measured, strict=True)
    )
