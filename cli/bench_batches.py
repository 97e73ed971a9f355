"""`treeopt bench batches`: several sequences decoded together, predicted and measured, as a table, a figure and JSON."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_pair import check_whole, heading_here, load_fitting, profile_of_texts
from treeopt.cli.bench_tree import promised_model
from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchBatchesOptions
from treeopt.cli.options.inputs import read_any_tree
from treeopt.cli.options.record import options
from treeopt.cli.options.rule import checked_rule
from treeopt.cli.terminal import warn
from treeopt.errors import InfeasibleError, Warning
from treeopt.records.rules import rule_label
from treeopt.report.batch_bench import without_times_warning
from treeopt.report.plan_text import subject
from treeopt.report.text import quoted
from treeopt.trees.tree_schedule import is_schedule, load_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treeopt.planner.batch_rivals import BatchRivals
    from treeopt.planner.tokens import TokenModel
    from treeopt.profiler.bench.batches import BatchComparison
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile


@click.command("batches", cls=Command)
@options(BenchBatchesOptions)
def bench_batches(asked: BenchBatchesOptions) -> None:
    """Decode several sequences together, next to the predictions.

    TREE or SCHEDULE decodes at every batch size; without either, the plan of each size does.
    """
    from treeopt.records.profile import check_draft_model

    profile = profile_of_texts(asked)
    check_draft_model(profile, "bench of several sequences at a time")
    planned = None if asked.tree is None else _tree_file(asked.tree)
    tokens, rivals = _rivals(profile, planned, asked)
    models = load_fitting(asked, profile, tree=asked.tree, planned=planned)
    _warn_of_times(profile, tokens, asked)
    from treeopt.profiler.bench.batches import batch_bench
    from treeopt.report.batch_bench import batch_bench_table
    from treeopt.report.bench_heading import headed_table

    comparison = _comparison(models, tokens, rivals, asked)
    found = batch_bench(comparison, rivals)
    heading = heading_here(models)
    asked.results.publish(headed_table(heading, batch_bench_table(found)), heading, found)
    if asked.results.plot is not None:
        from treeopt.report.figures.benches import batches_panels

        subtitle = f"{rule_label(found.rule)} at temperature {found.temperature:g}"
        asked.results.draw(batches_panels(found), title=subject(profile), subtitle=subtitle, columns=2)
    check_whole(found.rounds, comparison.workload.repeats)


def _comparison(
    models: "ModelPair", tokens: "TokenModel", rivals: "Mapping[int, BatchRivals]", asked: BenchBatchesOptions
) -> "BatchComparison":
    """Return what is decoded."""
    from treeopt.profiler.bench.batches import BatchComparison
    from treeopt.profiler.bench.compare import workload_as_measured
    from treeopt.profiler.decoding import Decoding
    from treeopt.texts.prompts import bench_prompts

    acceptance = tokens.acceptance
    held_out = bench_prompts(asked.prompts.load(models))
    texts = max(len(held_out), *asked.batch_sizes)  # where prompts are too few they are decoded again, with other seeds
    held_out = [held_out[number % len(held_out)] for number in range(texts)]
    return BatchComparison(
        target=models.target,
        draft=models.draft_model,
        trees={size: each.trees for size, each in rivals.items()},
        workload=workload_as_measured(held_out, acceptance, max_new_tokens=asked.max_new_tokens, repeats=asked.repeats),
        decoding=Decoding.as_measured(acceptance, lossy=asked.lossy),
    )


def _tree_file(path: Path) -> "TreeFile":
    """Return the tree of a file, of a schedule the one for a single text.

    Raises click.UsageError for a tree that another drafter than the draft model fills.
    """
    from treeopt.trees import TreeFile

    if is_schedule(path):
        schedule = load_schedule(path)
        return TreeFile(tree=schedule.tree(1), provenance=schedule.provenance)
    planned = read_any_tree(path)
    if planned.drafter is not None:
        raise click.UsageError(
            f"{path}: expected a tree that the draft model fills. Got one for {planned.drafter.name}, whose batches are not "
            f"predicted: decode with it by treeopt run {quoted(path)} --prompts FILE --batch-size N."
        )
    return planned


def _rivals(
    profile: "Profile", planned: "TreeFile | None", asked: BenchBatchesOptions
) -> "tuple[TokenModel, Mapping[int, BatchRivals]]":
    """Return the acceptance that is predicted by, and the trees of each batch size."""
    from treeopt.planner.batch_rivals import rivals_of

    sizes = sorted(asked.batch_sizes)
    if planned is None or asked.tree is None:
        return _planned(profile, sizes, asked)
    tokens = promised_model(profile, planned, asked).tokens
    if not is_schedule(asked.tree):
        return tokens, rivals_of(profile, tokens, dict.fromkeys(sizes), [planned.tree])
    schedule = load_schedule(asked.tree)
    chosen = {size: schedule.tree(size) for size in sizes}
    return tokens, rivals_of(profile, tokens, chosen, list(chosen.values()))


def _planned(
    profile: "Profile", sizes: list[int], asked: BenchBatchesOptions
) -> "tuple[TokenModel, Mapping[int, BatchRivals]]":
    """Return the same of the plans for each size, all by the rule that is best for the fewest texts."""
    from treeopt.planner import PlanRequest
    from treeopt.planner.batch_rivals import planned_rivals, plans_of_sizes

    request = PlanRequest(rule=asked.rule, temperature=asked.temperature, lossy=asked.lossy)
    try:
        plans = plans_of_sizes(profile, request, sizes)
    except InfeasibleError as error:
        listed = ",".join(map(str, sorted({1, *sizes})))
        raise InfeasibleError(f"{error} Batch sizes are measured by treeopt profile --batch-sizes {listed}.") from None
    first = plans[sizes[0]]
    checked_rule(first.rule, lossy=asked.lossy)
    return first.model.tokens, planned_rivals(plans)


def _warn_of_times(profile: "Profile", tokens: "TokenModel", asked: BenchBatchesOptions) -> None:
    """Warn of batch sizes that nothing is predicted for, and of times without the overhead of batches."""
    latencies = profile.latencies_at(tokens.acceptance.temperature)
    measured = [each.batch_size for each in latencies]
    beyond = tuple(size for size in sorted(asked.batch_sizes) if not min(measured) <= size <= max(measured))
    if beyond:
        warn(without_times_warning(beyond))
    if max(asked.batch_sizes) > 1 and any(each.batch_size > 1 and not each.steps for each in latencies):
        warn(
            Warning(
                "the profile has no batched steps, so predictions for several texts are too fast.",
                "Profile with --batch-sizes.",
            )
        )
