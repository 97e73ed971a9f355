"""`treeopt bench batches`: batches of several sizes, measured next to their predictions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_common import (
    BenchOptions,
    ResultOptions,
    bench_heading,
    check_complete,
    load_bench_models,
    load_bench_profile,
)
from treeopt.cli.bench_tree import draft_model_steps
from treeopt.cli.command import Command
from treeopt.cli.options.inputs import file, read_any_tree
from treeopt.cli.options.record import argument, group, option
from treeopt.cli.options.sampling import measured_rule_option
from treeopt.cli.options.values import BATCH_SIZES
from treeopt.cli.terminal import warn
from treeopt.errors import InfeasibleError, Warning
from treeopt.planner import PlanRequest
from treeopt.planner.benchmarks import BatchCandidates, plan_batch_sizes, planned_candidates, tree_candidates
from treeopt.planner.tokens import TokenModel
from treeopt.records.profile import Profile, require_draft_model
from treeopt.records.rules import check_rule, rule_label
from treeopt.report.batch_bench import batch_bench_table, without_times_warning
from treeopt.report.figures.benches import batches_panels
from treeopt.report.text import quoted, subject
from treeopt.texts.prompts import bench_prompts
from treeopt.trees import TreeFile
from treeopt.trees.tree_schedule import TreeSchedule, is_schedule, load_schedule

if TYPE_CHECKING:
    from treeopt.profiler.bench.batches import BatchComparison
    from treeopt.runtime.models.pair import ModelPair


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchBatchesOptions(BenchOptions):
    tree: Path | None = argument(type=file, required=False, metavar="[TREE|SCHEDULE]")
    batch_sizes: tuple[int, ...] = option(
        "--batch-sizes", type=BATCH_SIZES, required=True, help="Batch sizes, separated by commas."
    )
    rule: str | None = measured_rule_option(
        "Verification rule; by default the tree's, without a tree the best measured."
    )
    results: ResultOptions = group(ResultOptions)


@click.command("batches", cls=Command, record=BenchBatchesOptions)
def bench_batches(args: BenchBatchesOptions) -> None:
    """Decode batches of several sizes, next to the predictions.

    Every batch size is decoded with TREE or SCHEDULE; without either, with the plan for that size.
    """
    profile = load_bench_profile(args)
    require_draft_model(profile, "bench of several sequences at a time")
    schedule = load_schedule(args.tree) if args.tree is not None and is_schedule(args.tree) else None
    planned = None if args.tree is None else _load_tree(args.tree, schedule)
    tokens, candidates = _candidates(profile, planned, schedule, args)
    models = load_bench_models(args.pair, args.profile_path, profile, force=args.force, tree=args.tree, planned=planned)
    _warn_of_times(profile, tokens, args)
    comparison = _comparison(models, tokens, candidates, args)
    bench = comparison.bench()
    args.results.publish(
        batch_bench_table(bench),
        bench_heading(models),
        bench,
        batches_panels(bench),
        title=subject(profile),
        subtitle=f"{rule_label(bench.rule)} at temperature {bench.temperature:g}",
    )
    check_complete(bench.rounds, comparison.workload.repeats)


def _load_tree(path: Path, schedule: TreeSchedule | None) -> TreeFile:
    """Return the schedule's tree for batch size 1, otherwise the tree of a file.

    Raises click.UsageError for another drafter.
    """
    if schedule is not None:
        return TreeFile(tree=schedule.tree(1), provenance=schedule.provenance)
    planned = read_any_tree(path)
    if planned.drafter is not None:
        raise click.UsageError(
            f"{path}: expected a tree of the draft model. Got one of {planned.drafter.name}, whose batches are not "
            f"predicted: decode with it by treeopt run {quoted(path)} --prompts FILE --batch-size N."
        )
    return planned


def _candidates(
    profile: Profile, planned: TreeFile | None, schedule: TreeSchedule | None, args: BenchBatchesOptions
) -> tuple[TokenModel, Mapping[int, BatchCandidates]]:
    """Return the acceptance that predictions use, and the trees to decode with at each batch size."""
    sizes = sorted(args.batch_sizes)
    if planned is not None:
        tokens = draft_model_steps(profile, planned, args).tokens
        if schedule is None:
            return tokens, tree_candidates(profile, tokens, dict.fromkeys(sizes), [planned.tree])
        trees = {size: schedule.tree(size) for size in sizes}
        return tokens, tree_candidates(profile, tokens, trees, list(trees.values()))
    request = PlanRequest(rule=args.rule, temperature=args.temperature, lossy=args.lossy)
    try:
        plans = plan_batch_sizes(profile, request, sizes)
    except InfeasibleError as error:
        listed = ",".join(map(str, sorted({1, *sizes})))
        raise InfeasibleError(f"{error} Batch sizes are measured by treeopt profile --batch-sizes {listed}.") from None
    smallest = plans[sizes[0]]
    check_rule(smallest.rule, lossy=args.lossy)
    return smallest.model.tokens, planned_candidates(plans)


def _warn_of_times(profile: Profile, tokens: TokenModel, args: BenchBatchesOptions) -> None:
    """Warn of batch sizes without a prediction, and of times without the overhead of batches."""
    latencies = profile.latencies_at(tokens.acceptance.temperature)
    measured = [latency.batch_size for latency in latencies]
    outside = tuple(size for size in sorted(args.batch_sizes) if not min(measured) <= size <= max(measured))
    if outside:
        warn(without_times_warning(outside))
    if max(args.batch_sizes) > 1 and any(latency.batch_size > 1 and not latency.steps for latency in latencies):
        warn(
            Warning(
                "the profile has no batched steps, so predictions for batches are too fast.",
                "Profile with --batch-sizes.",
            )
        )


def _comparison(
    models: "ModelPair", tokens: TokenModel, candidates: Mapping[int, BatchCandidates], args: BenchBatchesOptions
) -> "BatchComparison":
    from treeopt.profiler.bench.batches import BatchComparison
    from treeopt.profiler.bench.compare import Workload, text_tokens
    from treeopt.profiler.decoding import Decoding

    acceptance = tokens.acceptance
    prompts = bench_prompts(args.prompts.load(models))
    new_tokens = args.max_new_tokens or text_tokens(acceptance)
    count = max(len(prompts), *args.batch_sizes)  # too few prompts are decoded again, with other seeds
    prompts = [prompts[number % len(prompts)] for number in range(count)]
    return BatchComparison(
        target=models.target,
        draft=models.draft_model,
        candidates=candidates,
        workload=Workload(prompts=prompts, max_new_tokens=new_tokens, repeats=args.repeats),
        decoding=Decoding.as_measured(acceptance, lossy=args.lossy),
    )
