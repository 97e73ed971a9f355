"""`treeopt solve`: the best tree for a profile."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import next_options
from treeopt.cli.options import load_profile, output, output_file, profile_options
from treeopt.cli.plan_json import plan_json
from treeopt.cli.plan_options import PlanOptions, plan_options
from treeopt.cli.plan_text import heading, imported, remarks, rules_table, subject, table, warnings
from treeopt.cli.sampling_options import sampling_text
from treeopt.cli.schedule_text import schedule_table
from treeopt.cli.text import diagram_width, quoted
from treeopt.cli.waiting import patience
from treeopt.errors import InterruptionError
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM

if TYPE_CHECKING:
    from treeopt.planner import Plan
    from treeopt.records.profile import Profile


@click.command(cls=Command)
@partial(profile_options, rule_help="Verification rule to plan for; by default the best of those measured.")
@plan_options
@click.option(
    "-o",
    "--output",
    "path",
    type=output,
    default=Path("tree.json"),
    show_default=True,
    help="Tree file to write; - is standard output.",
)
@click.option("--save", type=output_file, help="Solution file to write too; treeopt show takes any tree out of it.")
@click.option("--plot", type=output_file, help="Picture of the plan to write too: .svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object instead of the table.")
def solve(
    profile_path: Path, path: Path, save: Path | None, plot: Path | None, as_json: bool, asked: PlanOptions
) -> None:
    """Find the tree and the rule with the most tokens per second.

    All budgets and depths up to those measured are considered.

    Prints the best tree of a row of budgets, the best chain and plain decoding, and writes the fastest.  From a profile
    of several rules it prints the best of each; of several context lengths, batch sizes or temperatures, what to run at
    each, and where to switch.
    """
    to_stdout = str(path) == STANDARD_STREAM
    if as_json and to_stdout:
        raise click.UsageError("--json and --output -: only one can have standard output. Name a file for the tree.")
    if plot is not None:
        checked_suffix(plot)
    from treeopt.planner import tree_file
    from treeopt.planner.figure import save_plan_figure
    from treeopt.trees import draw_text

    profile = load_profile(profile_path)
    with patience("solving", unit="condition", total=1 + asked.scheduled(profile)) as tick:
        plan = asked.plan(profile)
        tick()
        schedule = asked.schedule(profile, tick)
    chosen = tree_file(plan, profile, source="; ".join(filter(None, [str(profile_path), imported(plan)])))
    if as_json:
        report = plan_json(plan, profile, schedule)
    else:
        blocks = [heading(plan, profile), table(plan)]
        if len(plan.rules) > 1:
            blocks.append(rules_table(plan))
        blocks.append("\n".join(remarks(plan, asked.level_width)))
        if schedule is not None:
            blocks.append(schedule_table(schedule))
        width = diagram_width(err=to_stdout)
        report = "\n\n".join([*blocks, draw_text(chosen.tree, reach=chosen.reach, max_rows=32, width=width)])
    writers: list[tuple[Path | None, Callable[[Path], None]]] = [
        (path, chosen.save),
        (save, plan.solution.save),
        (plot, lambda path: save_plan_figure(plan, path, title=subject(profile), profile=profile)),
    ]
    written = _write([(given, write) for given, write in writers if given is not None])
    click.echo(report, err=to_stdout)
    for warning in warnings(plan):
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        click.echo(f"Written to {written}", err=True)
    elif not to_stdout:
        click.echo(f"\nWritten to {written}. Next: {_next(path, plan, profile)}")


def _next(path: Path, plan: "Plan", profile: "Profile") -> str:
    """Return commands that go on with a tree, with its own pair, as it was measured and planned."""
    acceptance, file = plan.model.acceptance, quoted(path)
    options = sampling_text(acceptance.sampling, acceptance.draft_sampling) + (" --lossy" if plan.lossy else "")
    return (
        f"treeopt show {file} -o {quoted(path.with_suffix('.svg'))}, "
        f"treeopt run {file}{next_options(profile)}{options} --prompt TEXT"
    )


def _write(writers: list[tuple[Path, Callable[[Path], None]]]) -> str:
    """Write each file whole and return their names; an interruption names those that are already there."""
    written: list[str] = []
    try:
        for path, write in writers:
            write(path)
            written.append(str(path))
    except KeyboardInterrupt:
        if not written:
            raise
        raise InterruptionError(f"interrupted. Written: {', '.join(written)}. Run it again for the rest.") from None
    return ", ".join(written)
