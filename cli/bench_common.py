"""Options, models and results that the benchmarks of `treeopt bench` share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.identity import OWN_PROFILE, check_models, identity_here, identity_of, load_models
from treeopt.cli.options.inputs import (
    OTHER_MODELS,
    force_option,
    load_profile,
    output_option,
    plot_option,
    profile_option,
)
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.plan import temperature_option
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import Heading, group
from treeopt.cli.options.sampling import lossy_option, measured_rule_option
from treeopt.cli.options.values import COUNT
from treeopt.cli.outputs import is_stdout
from treeopt.cli.terminal import warn_of_other_programs
from treeopt.errors import InterruptionError
from treeopt.files.atomic_files import write_text
from treeopt.files.figure_file import write_figure
from treeopt.planner import for_new_tokens
from treeopt.plotting.panels import Panel, compose
from treeopt.records.bench_file import Bench, BenchFile, BenchHeading
from treeopt.records.identity import Identity
from treeopt.records.machine import now
from treeopt.records.profile import Profile
from treeopt.report.bench_text import describe_heading
from treeopt.report.text import quoted
from treeopt.trees import TreeFile

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair


def repeats_option(default: int) -> Any:
    return Heading.MEASURED.option(
        "--repeats", type=COUNT, default=default, help="How often each prompt is decoded; the median counts."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    path: Path | None = output_option("Also write the results as JSON; - for standard output.")
    plot: Path | None = plot_option()

    def publish(
        self, table: str, heading: BenchHeading, bench: Bench, panels: Sequence[Panel], *, title: str, subtitle: str
    ) -> None:
        """Print heading and table, on standard error if the JSON goes to standard output; write the JSON and the figure."""
        text = f"{describe_heading(heading)}\n{table}"
        click.echo(text, err=self.path is not None and is_stdout(self.path))
        if self.path is not None:
            write_text(self.path, BenchFile(heading, bench).text)
        if self.plot is not None:
            write_figure(compose(panels, title=title, subtitle=subtitle, columns=2), self.plot)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of `bench tree`, `bench grid` and `bench batches`."""

    pair: PairOptions = group(PairOptions)
    prompts: PromptOptions = group(PromptOptions)
    profile_path: Path = profile_option("Profile, as written by treeopt profile.")
    rule: str | None = measured_rule_option("Verification rule; by default the tree's.")
    temperature: float | None = temperature_option("the tree's if it was measured, otherwise the first in the profile")
    lossy: bool = lossy_option()
    max_new_tokens: int | None = Heading.MEASURED.option(
        "--max-new-tokens",
        type=COUNT,
        help="New tokens per prompt, to the end of the last step; by default as many as in the profile. Predictions are for "
        "this length.",
    )
    force: bool = force_option(OTHER_MODELS, heading=Heading.MODELS)
    repeats: int = repeats_option(3)


def load_bench_profile(args: BenchOptions) -> Profile:
    """Load the profile that predicts outputs of the benchmark's length."""
    profile = load_decoder_profile(args.profile_path)
    return profile if args.max_new_tokens is None else for_new_tokens(profile, args.max_new_tokens)


def load_decoder_profile(path: Path) -> Profile:
    """Load a profile of treeopt's own decoder; raises click.UsageError for one of a serving engine."""
    profile = load_profile(path)
    if profile.engine is not None:
        name = profile.engine.name
        raise click.UsageError(
            f"{path}: expected a profile of treeopt's own decoder. Got one of {name}: treeopt bench engine {name} --profile "
            f"{quoted(path)}."
        )
    return profile


def load_bench_models(
    pair: PairOptions,
    profile_path: Path | None,
    profile: Profile | None,
    *,
    force: bool,
    tree: Path | None = None,
    planned: TreeFile | None = None,
) -> "ModelPair":
    """Load the models of a profile, or those of the options; warns of other programs on the processors.

    Raises TreeoptError for a profile or a tree of other models, unless `force` is set.
    """
    if profile is None or profile_path is None:
        models = pair.load()
    else:
        models = load_models(pair, profile_path, identity_of(profile), force=force)
    if tree is not None and planned is not None:
        remedy = OWN_PROFILE if pair.target is None and pair.draft is None else None
        identity = Identity.from_provenance(planned.provenance)
        check_models(tree, identity, identity_here(models), force=force, remedy=remedy)
    warn_of_other_programs(models.target)
    return models


def bench_heading(models: "ModelPair") -> BenchHeading:
    """Return the heading of a benchmark that has just ended."""
    from treeopt.profiler.machine import describe_machine

    return BenchHeading(created=now(), machine=describe_machine(models.target.device), pair=models.described)


def check_complete(rounds: int, expected: int) -> None:
    """Raise InterruptionError if fewer rounds were measured than expected; call it after the results are printed."""
    if rounds < expected:
        raise InterruptionError(
            f"interrupted after {rounds} of {expected} rounds; the results are of those. Run it again for all of them."
        )
