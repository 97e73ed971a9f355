"""`treeopt solve`: the best tree for a profile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import json_option, load_profile, output_option, plot_option, profile_option
from treeopt.cli.options.plan import PlanOptions, category_option, new_tokens_option
from treeopt.cli.options.record import Heading, group, option
from treeopt.cli.options.values import OneOf
from treeopt.cli.outputs import OutputFile, is_stdout
from treeopt.cli.plan_profile import plan_categories, plan_profile, select_sequences
from treeopt.cli.terminal import diagram_width, print_result, warn
from treeopt.errors import InterruptionError
from treeopt.files.figure_file import write_figure
from treeopt.planner import tree_file
from treeopt.planner.categories import CategoryPlans
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.profile import require_draft_model
from treeopt.report.commands import decoding_options, engine_command
from treeopt.report.plan_json import plan_json
from treeopt.report.plan_text import plan_source, plan_text
from treeopt.report.plan_warnings import profile_plan_warnings
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
        "--drafter", type=OneOf("name", lambda: DRAFTERS), help="Drafter to plan for; by default the fastest measured."
    )
    new_tokens: int | None = new_tokens_option()
    category: str | None = category_option()
    path: Path = output_option("Tree file to write; - for standard output.", default=Path("tree.json"))
    save: Path | None = Heading.OUTPUT.option(
        "--save",
        type=OutputFile(stream=False),
        help="Also write a solution file, from which treeopt show draws the tree for any budget and depth.",
    )
    plot: Path | None = plot_option()
    as_json: bool = json_option()


@click.command(cls=Command, record=SolveOptions)
def solve(args: SolveOptions) -> None:
    """Find the fastest tree and rule for a profile.

    Prints the best tree of several budgets, the best chain and plain decoding, and writes the fastest.  If several rules
    or drafters were measured, prints the best of each.  If several context lengths, batch sizes or temperatures were
    measured, prints the fastest choice at each.
    """
    if args.as_json and is_stdout(args.path):
        raise click.UsageError("--json and --output -: only one can have standard output. Name a file for the tree.")
    request = args.plan.request
    profile = select_sequences(
        load_profile(args.profile_path),
        request,
        category=args.category,
        new_tokens=args.new_tokens,
        drafter=args.drafter,
    )
    for flag, path in (("--plot", args.plot), ("--save", args.save)):
        if path is not None:
            require_draft_model(profile, flag)
    if args.save is not None and args.drafter not in (None, "model"):
        raise click.UsageError("--save: expected the draft model, whose trees are solved. Leave it out, or --drafter.")
    planned = plan_profile(profile, request, args.drafter)
    categories = None if args.category is not None else plan_categories(planned, args.drafter)
    source = plan_source(args.profile_path, planned.plan, args.new_tokens, args.category)
    tree = tree_file(planned.plan, profile, source=source, choice=planned.best)
    if args.as_json:
        text = plan_json(planned, new_tokens=args.new_tokens, category=args.category, categories=categories)
    else:
        text = _plan_text(args, planned, tree, categories)
    files = _write_files(args, planned, tree)
    warnings = profile_plan_warnings(planned, categories)
    if not args.as_json:
        print_result(text, files, warnings=warnings, next_command=_next_command(args, planned))
        return
    click.echo(text)
    for warning in warnings:
        warn(warning)
    click.echo(f"Written to {', '.join(map(str, files))}", err=True)


def _plan_text(args: SolveOptions, planned: ProfilePlan, tree: TreeFile, categories: CategoryPlans | None) -> str:
    """Return the tables and a diagram of the tree, if the drafter has one."""
    text = plan_text(
        planned,
        new_tokens=args.new_tokens,
        category=args.category,
        categories=categories,
    )
    if tree.drafter is not None and tree.drafter.values:
        return text
    diagram = draw_text(
        tree.tree,
        reach=tree.reach,
        tokens_per_step=tree.tokens_per_step,
        max_rows=MAX_ROWS,
        width=diagram_width(err=is_stdout(args.path)),
    )
    return f"{text}\n\n{diagram}"


def _next_command(args: SolveOptions, planned: ProfilePlan) -> str:
    file = quoted(args.path)
    if planned.profile.engine is not None:
        return engine_command(planned.profile, quoted(args.profile_path), file)
    figure = quoted(args.path.with_suffix(".svg"))
    options = decoding_options(planned.profile, planned.plan, planned.option)
    return f"treeopt show {file} -o {figure}, treeopt run {file}{options} --prompt TEXT"


def _write_files(args: SolveOptions, planned: ProfilePlan, tree: TreeFile) -> list[Path]:
    """Write each requested file whole and return their paths; an interruption names those that are complete."""

    def save_plot(path: Path) -> None:
        from treeopt.report.figures.profile_figures import plan_figure

        write_figure(plan_figure(planned), path)

    writers: list[tuple[Path | None, Callable[[Path], None]]] = [
        (args.path, tree.save),
        (args.save, planned.plan.solution.save),
        (args.plot, save_plot),
    ]
    written: list[Path] = []
    try:
        for path, write in writers:
            if path is not None:
                write(path)
                written.append(path)
    except KeyboardInterrupt:
        if not written:
            raise
        names = ", ".join(map(str, written))
        raise InterruptionError(f"interrupted. Written: {names}. Run it again for the rest.") from None
    return written
