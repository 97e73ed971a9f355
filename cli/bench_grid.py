"""`treeopt bench grid`: many trees' measurements next to their predictions."""

from dataclasses import dataclass

import click

from treeopt.cli.bench_common import (
    BenchOptions,
    ResultOptions,
    bench_heading,
    check_complete,
    load_bench_models,
    load_bench_profile,
)
from treeopt.cli.command import Command
from treeopt.cli.options.plan import temperature_option
from treeopt.cli.options.record import Heading, group
from treeopt.cli.options.sampling import measured_rule_option
from treeopt.planner import PlanRequest, requested_plan
from treeopt.records.profile import require_draft_model
from treeopt.records.rules import check_rule
from treeopt.report.bench_text import grid_table
from treeopt.report.figures.benches import grid_panel
from treeopt.report.profile_text import measured_today
from treeopt.report.text import subject
from treeopt.texts.prompts import bench_prompts, profile_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGridOptions(BenchOptions):
    rule: str | None = measured_rule_option("Verification rule; by default the best measured.")
    temperature: float | None = temperature_option()
    same_prompts: bool = Heading.PROMPTS.option(
        "--same-prompts",
        is_flag=True,
        help="Decode the prompts that profiles are measured on, so that only the model's own errors remain.",
    )
    results: ResultOptions = group(ResultOptions)


@click.command("grid", cls=Command, record=BenchGridOptions)
def bench_grid(args: BenchGridOptions) -> None:
    """Decode with many trees and plainly, next to the predictions.

    The trees are chains, trees of several sizes and depths, and the plan's choice.
    """
    profile = load_bench_profile(args)
    require_draft_model(profile, "bench of many trees")
    plan = requested_plan(profile, PlanRequest(rule=args.rule, temperature=args.temperature, lossy=args.lossy))
    check_rule(plan.rule, lossy=args.lossy)
    models = load_bench_models(args.pair, args.profile_path, profile, force=args.force)
    from treeopt.methods.grid import bench_grid
    from treeopt.profiler.bench.compare import Workload, text_tokens

    prompts = (profile_prompts if args.same_prompts else bench_prompts)(args.prompts.load(models))
    new_tokens = args.max_new_tokens or text_tokens(plan.model.acceptance)
    workload = Workload(prompts=prompts, max_new_tokens=new_tokens, repeats=args.repeats)
    bench = bench_grid(plan, models, workload, lossy=args.lossy)
    prompts_text = "the prompts of the profile" if args.same_prompts else "held-out prompts"
    args.results.publish(
        grid_table(bench),
        bench_heading(models),
        bench,
        [grid_panel(bench)],
        title=subject(profile),
        subtitle=f"{plan.conditions}, {prompts_text}, {measured_today()}",
    )
    check_complete(bench.trees[0].measured.rounds, workload.rounds)
