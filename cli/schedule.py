"""`treeopt schedule`: a tree for every number of texts that are decoded at a time."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE_PATH, load_profile, output_option
from treeopt.cli.options.plan import CATEGORY, NEW_TOKENS, PlanOptions
from treeopt.cli.options.record import group, options
from treeopt.cli.plan_profile import profile_for_category, profile_for_texts
from treeopt.cli.terminal import warn
from treeopt.cli.waiting import patience
from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.planner import Plan, Schedule
    from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What to plan from and for, and what to write."""

    profile_path: Path = field(metadata=PROFILE_PATH)
    plan: PlanOptions = field(metadata=group(PlanOptions))
    new_tokens: int | None = field(metadata=NEW_TOKENS)
    category: str | None = field(metadata=CATEGORY)
    path: Path = field(
        metadata=output_option(
            "path", "Schedule file to write; - is standard output.", default=Path("schedule.json"), show_default=True
        )
    )


@click.command(cls=Command)
@options(ScheduleOptions)
def schedule(asked: ScheduleOptions) -> None:
    """Plan a tree for every number of texts that are decoded at a time.

    The trees are the draft model's, under the best rule at the first condition, or that of --rule.  Prints what to run
    at which batch size and context length, and writes the trees of one context length as a file for treeopt run.
    """
    if asked.plan.objective != "speed":
        raise click.UsageError("--objective tokens: schedules are for speed. Leave it out.")
    from treeopt.planner import tree_file
    from treeopt.planner.scheduling import tree_schedule
    from treeopt.records.profile import check_draft_model
    from treeopt.report.context_warnings import context_warnings
    from treeopt.report.plan_text import decoding_options, plan_source
    from treeopt.report.schedule_text import schedule_table

    profile = load_profile(asked.profile_path)
    check_draft_model(profile, "treeopt schedule")
    if asked.new_tokens is not None:
        profile = profile_for_texts(profile, asked.plan.request, asked.new_tokens, "model")
    profile = profile_for_category(profile, asked.category)
    plan, found = _planned(asked, profile)
    trees = tree_schedule(found, rule=plan.rule, temperature=plan.temperature, context_tokens=plan.context_tokens)
    source = plan_source(asked.profile_path, plan, asked.new_tokens, asked.category)
    provenance = tree_file(plan, profile, source=source).provenance
    assert found is not None  # tree_schedule refuses a profile of one condition
    assert provenance is not None  # plans say where they come from
    provenance = replace(provenance, tokens_per_step=None, step_s=None, speedup=None)
    replace(trees, provenance=provenance).save(asked.path)
    to_stdout = str(asked.path) == STANDARD_STREAM
    click.echo(schedule_table(found), err=to_stdout)
    for warning in context_warnings(plan, profile, found, ()):
        warn(warning)
    if not to_stdout:
        file = quoted(asked.path)
        click.echo(f"\nWritten to {file}. Next: treeopt run {file}{decoding_options(plan)} --prompts FILE")


def _planned(asked: ScheduleOptions, profile: "Profile") -> "tuple[Plan, Schedule | None]":
    """Return the plan at the operating point that is asked for, and the schedule of its rule, which texts cannot change."""
    from treeopt.planner import requested_plan
    from treeopt.planner.scheduling import schedule_as_measured, several_conditions

    request = asked.plan.request
    with patience("solving", unit="condition", total=1 + several_conditions(profile, request)) as tick:
        plan = requested_plan(profile, request)
        tick()
        return plan, schedule_as_measured(profile, replace(request, rule=plan.rule), tick)
