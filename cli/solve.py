"""`treeopt solve`: the best tree for a profile."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import PROFILE_PATH, load_profile, output_file, output_option
from treeopt.cli.options.plan import CATEGORY, NEW_TOKENS, PlanOptions
from treeopt.cli.options.record import Heading, group, option, options
from treeopt.cli.plan_profile import plan_categories, plan_profile, profile_for_category, profile_for_texts
from treeopt.cli.terminal import diagram_width, warn
from treeopt.errors import InterruptionError
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.text import quoted
from treeopt.trees.drafter_setting import DRAFTERS

if TYPE_CHECKING:
    from treeopt.planner import Plan
    from treeopt.planner.categories import CategoryPlans
    from treeopt.planner.planned import Planned
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """What to plan from and for, and what to write."""

    profile_path: Path = field(metadata=PROFILE_PATH)
    plan: PlanOptions = field(metadata=group(PlanOptions))
    drafter: str | None = field(
        metadata=option(
            "--drafter",
            type=click.Choice(DRAFTERS),
            metavar="NAME",
            help="Drafter to write the tree of; by default the fastest of those measured.",
        )
    )
    new_tokens: int | None = field(metadata=NEW_TOKENS)
    category: str | None = field(metadata=CATEGORY)
    path: Path = field(
        metadata=output_option(
            "path", "Tree file to write; - is standard output.", default=Path("tree.json"), show_default=True
        )
    )
    save: Path | None = field(
        metadata=option(
            "--save",
            heading=Heading.OUTPUT,
            type=output_file,
            help="Solution file to write too; treeopt show takes any tree out of it.",
        )
    )
    plot: Path | None = field(
        metadata=option(
            "--plot",
            heading=Heading.OUTPUT,
            type=output_file,
            help="Picture of the plan to write too: .svg, .png or .pdf.",
        )
    )
    as_json: bool = field(
        metadata=option(
            "--json",
            "as_json",
            heading=Heading.OUTPUT,
            is_flag=True,
            help="Print everything as one JSON object instead of the table.",
        )
    )

    @property
    def to_stdout(self) -> bool:
        """Whether the tree file goes to standard output."""
        return str(self.path) == STANDARD_STREAM

    def source(self, plan: "Plan") -> str:
        """Return what a file that is written names as its source."""
        from treeopt.report.plan_text import plan_source

        return plan_source(self.profile_path, plan, self.new_tokens, self.category)


@click.command(cls=Command)
@options(SolveOptions)
def solve(asked: SolveOptions) -> None:
    """Find the tree and the rule with the most tokens per second.

    All budgets and depths up to those measured are considered.

    Prints the best tree of a row of budgets, the best chain and plain decoding, and writes the fastest.  From a profile
    of several rules or drafters it prints the best of each; of several context lengths, batch sizes or temperatures, what to run at
    each, and where to switch.
    """
    if asked.as_json and asked.to_stdout:
        raise click.UsageError("--json and --output -: only one can have standard output. Name a file for the tree.")
    if asked.plot is not None:
        checked_suffix(asked.plot)
    from treeopt.planner import tree_file
    from treeopt.records.profile import check_draft_model
    from treeopt.report.context_warnings import context_warnings
    from treeopt.report.plan_json import plan_json
    from treeopt.report.plan_text import warnings

    profile = load_profile(asked.profile_path)
    if asked.new_tokens is not None:
        profile = profile_for_texts(profile, asked.plan.request, asked.new_tokens, asked.drafter)
    profile = profile_for_category(profile, asked.category)
    if asked.plot is not None:
        check_draft_model(profile, "--plot")
    found = plan_profile(profile, asked.plan.request, asked.drafter)
    categories = plan_categories(found, asked.plan.request, asked.drafter)
    plan = found.plan
    chosen = tree_file(plan, profile, source=asked.source(plan), choice=found.best)
    report = (
        plan_json(
            plan,
            profile,
            found.schedule,
            found.drafters,
            found.over_contexts,
            new_tokens=asked.new_tokens,
            category=asked.category,
            categories=categories,
        )
        if asked.as_json
        else _text(asked, found, profile, chosen, categories)
    )
    written = _write(_writers(asked, found, chosen))
    click.echo(report, err=asked.to_stdout)
    for warning in [
        *warnings(plan, found.drafters),
        *context_warnings(plan, profile, found.schedule, found.drafters),
        *(() if categories is None else categories.warnings),
    ]:
        warn(warning)
    if asked.as_json:
        click.echo(f"Written to {written}", err=True)
    elif not asked.to_stdout:
        click.echo(f"\nWritten to {written}. Next: {_next(asked, plan, profile)}")


def _text(
    asked: SolveOptions,
    found: "Planned",
    profile: "Profile",
    chosen: "TreeFile",
    categories: "CategoryPlans | None",
) -> str:
    """Return the tables and the tree, where there is one, as wide as the terminal."""
    from treeopt.report.plan_text import plan_text
    from treeopt.trees import draw_text

    text = plan_text(
        found.plan,
        profile,
        found.schedule,
        level_width=asked.plan.level_width,
        new_tokens=asked.new_tokens,
        drafters=found.drafters,
        over_contexts=found.over_contexts,
        category=asked.category,
        categories=categories,
    )
    if chosen.drafter is not None and chosen.drafter.values:
        return text
    width = diagram_width(err=asked.to_stdout)
    return f"{text}\n\n{draw_text(chosen.tree, reach=chosen.reach, max_rows=32, width=width)}"


def _next(asked: SolveOptions, plan: "Plan", profile: "Profile") -> str:
    """Return commands that go on with what was written, with its own pair, as it was measured and planned."""
    from treeopt.records.profile import IMPORTED
    from treeopt.report.plan_text import decoding_options

    file = quoted(asked.path)
    if profile.engine is not None and profile.engine.name == IMPORTED:
        return f"treeopt export {file} --profile {quoted(asked.profile_path)} --to vllm"
    if profile.engine is not None:
        command = f"treeopt bench engine {profile.engine.name} --profile {quoted(asked.profile_path)}"
        served = [] if profile.pair.target_source is not None else profile.chain_latencies[0].chains
        return command + (" --url " + ",".join(f"{each.length}=URL" for each in served) if served else "")
    picture = quoted(asked.path.with_suffix(".svg"))
    return f"treeopt show {file} -o {picture}, treeopt run {file}{decoding_options(plan)} --prompt TEXT"


Writer = tuple[Path, Callable[[Path], None]]


def _writers(asked: SolveOptions, found: "Planned", chosen: "TreeFile") -> list[Writer]:
    """Return the files that are wanted, each with what writes it."""
    from treeopt.files.picture_file import save_drawing
    from treeopt.report.figures.whole import plan_figure

    writers: list[Writer] = [(asked.path, chosen.save)]
    if asked.save is not None:
        writers.append((asked.save, found.plan.solution.save))
    if asked.plot is not None:
        writers.append((asked.plot, lambda path: save_drawing(plan_figure(found), path)))
    return writers


def _write(writers: list[Writer]) -> str:
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
