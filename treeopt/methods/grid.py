"""Benchmark a grid of trees and compare it to the predictions."""

from treeopt.planner import Plan
from treeopt.planner.benchmarks import predict_at_pace, predict_grid, tree_prediction
from treeopt.profiler.bench.compare import Workload, bench_trees
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.decoding import Decoding
from treeopt.records.bench_file import GridBench, GridTree
from treeopt.runtime.models.pair import ModelPair


def bench_grid(
    plan: Plan,
    pair: ModelPair,
    workload: Workload,
    *,
    lossy: bool,
) -> GridBench:
    """Benchmark every tree of a plan's grid; the chosen tree comes first, with predictions at the measured pace.

    Args:
        plan: provides the trees, their predictions and the rule.
        pair: the models.
        workload: prompts, new tokens and rounds.
        lossy: allow rules that change the output's distribution.
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
    )
    return GridBench(
        rule=plan.rule,
        temperature=plan.temperature,
        predicted_plain_step_s=float(model.costs.plain_s[0]),
        plain_is_fastest=plan.choice.kind == "plain",
        trees=tuple(
            GridTree(
                tree=option.tree,
                predicted=tree_prediction(option, predict_at_pace(model, option.tree, measurement.pace)),
                measured=measurement,
            )
            for option, measurement in zip(predicted, measured, strict=True)
        ),
    )
