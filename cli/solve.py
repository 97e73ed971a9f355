"""`treeopt solve`: the best tree for a profile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import json_option, load_profile, output_option, plot_option, profile_option
from treeopt.cli.options.plan import PlanOptions, category_option, new_tokens_option
from treeopt.cli.options.record import Heading, group, option, options
from treeopt.cli.outputs import OutputFile, is_stdout
from treeopt.cli.plan_profile import plan_categories, plan_profile, select_category, select_new_tokens
from treeopt.cli.terminal import diagram_width, warn
from treeopt.errors import InterruptionError
from treeopt.files.figure_file import check_suffix, write_figure
from treeopt.planner import Plan, step_model, tree_file
from treeopt.planner.categories import CategoryPlans
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.planner.segments import fastest_length
from treeopt.records.profile import IMPORTED, Profile, require_draft_model
from treeopt.report.plan_json import plan_json
from treeopt.report.plan_text import decoding_options, plan_source, plan_text
from treeopt.report.plan_warnings import context_warnings, plan_warnings
from treeopt.report.text import quoted
from treeopt.trees import TreeFile, draw_text
from treeopt.trees.drafter_setting import DRAFTERS

MAX_ROWS = 32
"""Rows of the drawn tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    profile_path: Path = profile_option()
    plan: PlanOptions = group(PlanOptions)
    drafter: str | None = option(
        "--drafter",
        type=click.Choice(DRAFTERS),
        metavar="NAME",
        help="Drafter to plan for; by default the fastest measured.",
    )
    new_tokens: int | None = new_tokens_option()
    category: str | None = category_option()
    path: Path = output_option("Tree file to write; - for standard output.", default=Path("tree.json"))
    save: Path | None = option(
        "--save",
        heading=Heading.OUTPUT,
        type=OutputFile(stream=False),
        help="Also write a solution file, from which treeopt show draws the tree for any budget and depth.",
    )
    plot: Path | None = plot_option()
    as_json: bool = json_option()


@click.command(cls=Command)
@options(SolveOptions)
def solve(args: SolveOptions) -> None:
    """Find the fastest tree and rule for a profile.

    Prints the best tree of several budgets, the best chain and plain decoding, and writes the fastest.  If several rules
    or drafters were measured, prints the best of each.  If several context lengths, batch sizes or temperatures were
    measured, prints the fastest choice at each.
    """
    to_stdout = is_stdout(args.path)
    if args.as_json and to_stdout:
        raise click.UsageError("--json and --output -: only one can have standard output. Name a file for the tree.")
    if args.plot is not None:
        check_suffix(args.plot)
    request = args.plan.request
    profile = select_new_tokens(load_profile(args.profile_path), request, args.new_tokens, args.drafter)
    profile = select_category(profile, args.category)
    if args.plot is not None:
        require_draft_model(profile, "--plot")
    profile_plan = plan_profile(profile, request, args.drafter)
    categories = plan_categories(profile_plan, request, args.drafter)
    plan = profile_plan.plan
    source = plan_source(args.profile_path, plan, args.new_tokens, args.category)
    tree = tree_file(plan, profile, source=source, choice=profile_plan.best)
    if args.as_json:
        text = plan_json(
            plan,
            profile,
            profile_plan.schedule,
            profile_plan.drafters,
            profile_plan.over_contexts,
            new_tokens=args.new_tokens,
            category=args.category,
            categories=categories,
        )
    else:
        text = _plan_text(args, profile_plan, tree, categories)
    written = _write_files(args, profile_plan, tree)
    click.echo(text, err=to_stdout)
    for warning in [
        *plan_warnings(plan, profile_plan.drafters),
        *context_warnings(plan, profile, profile_plan.schedule, profile_plan.drafters),
        *(() if categories is None else categories.warnings),
    ]:
        warn(warning)
    if args.as_json:
        click.echo(f"Written to {written}", err=True)
    elif not to_stdout:
        click.echo(f"\nWritten to {written}. Next: {_next_command(args, plan, profile)}")


def _plan_text(args: SolveOptions, profile_plan: ProfilePlan, tree: TreeFile, categories: CategoryPlans | None) -> str:
    """Return the tables and a diagram of the tree, if the drafter has one."""
    text = plan_text(
        profile_plan.plan,
        profile_plan.profile,
        profile_plan.schedule,
        level_width=args.plan.level_width,
        new_tokens=args.new_tokens,
        drafters=profile_plan.drafters,
        over_contexts=profile_plan.over_contexts,
        category=args.category,
        categories=categories,
    )
    if tree.drafter is not None and tree.drafter.values:
        return text
    width = diagram_width(err=is_stdout(args.path))
    return f"{text}\n\n{draw_text(tree.tree, reach=tree.reach, max_rows=MAX_ROWS, width=width)}"


def _next_command(args: SolveOptions, plan: Plan, profile: Profile) -> str:
    file, profile_path = quoted(args.path), quoted(args.profile_path)
    if profile.engine is not None and profile.engine.name == IMPORTED:
        return f"treeopt export {file} --profile {profile_path} --to vllm"
    if profile.engine is not None:
        command = f"treeopt bench engine {profile.engine.name} --profile {profile_path}"
        if profile.pair.target_source is not None:
            return command
        planned = fastest_length(step_model(profile))
        lengths = [0, planned] if planned else [chain.length for chain in profile.chain_latencies[0].chains]
        return f"{command} --url {','.join(f'{length}=URL' for length in lengths)}"
    figure = quoted(args.path.with_suffix(".svg"))
    return f"treeopt show {file} -o {figure}, treeopt run {file}{decoding_options(plan)} --prompt TEXT"


def _write_files(args: SolveOptions, profile_plan: ProfilePlan, tree: TreeFile) -> str:
    """Write each requested file whole and return their names; an interruption names those that are complete."""

    def save_plot(path: Path) -> None:
        from treeopt.report.figures.profile_figures import plan_figure

        write_figure(plan_figure(profile_plan), path)

    writers: list[tuple[Path | None, Callable[[Path], None]]] = [
        (args.path, tree.save),
        (args.save, profile_plan.plan.solution.save),
        (args.plot, save_plot),
    ]
    written: list[str] = []
    try:
        for path, write in writers:
            if path is not None:
                write(path)
                written.append(str(path))
    except KeyboardInterrupt:
        if not written:
            raise
        raise InterruptionError(f"interrupted. Written: {', '.join(written)}. Run it again for the rest.") from None
    return ", ".join(written)
