"""`treeopt bench grid`: many trees, predicted and decoded for real, as a table, a figure and JSON."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_pair import check_whole, heading_here, load_fitting, profile_of_texts
from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchGridOptions
from treeopt.cli.options.record import options
from treeopt.cli.options.rule import checked_rule
from treeopt.report.plan_text import subject

if TYPE_CHECKING:
    from treeopt.planner import Plan
    from treeopt.records.profile import Profile


@click.command("grid", cls=Command)
@options(BenchGridOptions)
def bench_grid(asked: BenchGridOptions) -> None:
    """Decode with many trees and plainly, next to the predictions.

    The grid has chains, trees of several sizes and depths, and the plan's choice.
    """
    from treeopt.records.profile import check_draft_model

    profile = profile_of_texts(asked)
    check_draft_model(profile, "bench of many trees")
    found = _plan(profile, asked)
    models = load_fitting(asked, profile)
    from treeopt.methods.grid import measured_grid
    from treeopt.profiler.bench.compare import workload_as_measured
    from treeopt.report.bench_records import grid_bench
    from treeopt.report.grid_bench import grid_table
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = (profile_prompts if asked.same_prompts else bench_prompts)(asked.prompts.load(models))
    acceptance = found.model.acceptance
    workload = workload_as_measured(prompts, acceptance, max_new_tokens=asked.max_new_tokens, repeats=asked.repeats)
    rows = measured_grid(found, models, workload, lossy=asked.lossy)
    plain_s = float(found.model.costs.verify_s[1])
    bench = grid_bench(rows, plain_s, acceptance, plain_is_fastest=found.choice.kind == "plain")
    asked.results.publish(grid_table(bench), heading_here(models), bench)
    if asked.results.plot is not None:
        from treeopt.report.figures.benches import grid_panel
        from treeopt.report.profile_words import measured_today

        decoded = "the prompts of the profile" if asked.same_prompts else "held-out prompts"
        asked.results.draw(
            [grid_panel(bench)],
            title=subject(profile),
            subtitle=f"{found.conditions}, {decoded}, {measured_today()}",
        )
    check_whole(rows[0].measured.rounds, workload.rounds)


def _plan(profile: "Profile", asked: BenchGridOptions) -> "Plan":
    """Return the plan over all nodes that were measured, under a rule that may be run."""
    from treeopt.planner import PlanRequest, requested_plan

    found = requested_plan(profile, PlanRequest(rule=asked.rule, temperature=asked.temperature, lossy=asked.lossy))
    checked_rule(found.rule, lossy=asked.lossy)
    return found
