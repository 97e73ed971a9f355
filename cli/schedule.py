"""`treeopt schedule`: a tree for every batch size."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import load_profile, output_option, profile_option
from treeopt.cli.options.plan import PlanOptions, category_option, new_tokens_option
from treeopt.cli.options.record import group, refuse_options
from treeopt.cli.plan_profile import select_sequences
from treeopt.cli.terminal import print_result, progress
from treeopt.planner import requested_plan, tree_file
from treeopt.planner.scheduling import count_scheduled_points, schedule_if_measured, tree_schedule
from treeopt.records.profile import require_draft_model
from treeopt.report.commands import decoding_options
from treeopt.report.plan_text import plan_source, schedule_table
from treeopt.report.plan_warnings import context_warnings
from treeopt.report.text import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    profile_path: Path = profile_option()
    plan: PlanOptions = group(PlanOptions)
    new_tokens: int | None = new_tokens_option()
    category: str | None = category_option()
    path: Path = output_option("Schedule to write; - for standard output.", default=Path("schedule.json"))


@click.command(cls=Command, record=ScheduleOptions)
def schedule(args: ScheduleOptions) -> None:
    """Plan a tree for every batch size.

    Plans trees for the draft model, under --rule or the rule that is best at the first operating point.  Prints the
    fastest choice by batch size and context length, and writes the trees of one context length for treeopt run.
    """
    if args.plan.objective != "speed":
        raise click.UsageError("--objective tokens: schedules are for speed. Leave it out.")
    refuse_options(["batch_size"], "a schedule has a tree for every measured batch size. Leave it out.")
    refuse_options(["extrapolate"], "schedules are for what was measured. Leave it out.")
    request = args.plan.request
    profile = load_profile(args.profile_path)
    require_draft_model(profile, "treeopt schedule")
    profile = select_sequences(profile, request, category=args.category, new_tokens=args.new_tokens, drafter="model")
    with progress("solving", unit="condition", total=1 + count_scheduled_points(profile, request)) as tick:
        plan = requested_plan(profile, request)
        tick()
        planned = schedule_if_measured(profile, replace(request, rule=plan.rule), tick)
    trees = tree_schedule(planned, rule=plan.rule, temperature=plan.temperature, context_tokens=plan.context_tokens)
    source = plan_source(args.profile_path, plan, args.new_tokens, args.category)
    provenance = tree_file(plan, profile, source=source).provenance
    assert planned is not None  # tree_schedule refuses None
    assert provenance is not None
    provenance = replace(provenance, tokens_per_step=None, step_s=None, speedup=None)
    replace(trees, provenance=provenance).save(args.path)
    print_result(
        schedule_table(planned),
        [args.path],
        warnings=[*plan.warnings, *context_warnings(plan, profile, planned, ())],
        next_command=f"treeopt run {quoted(args.path)}{decoding_options(profile, plan, plan.choice)} --prompts FILE",
    )
