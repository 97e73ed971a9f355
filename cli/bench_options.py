"""What `treeopt bench` is asked in all of its modes, and what its modes refuse."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from treeopt.cli.identity import identity_here, refuse_other_pair, warn_of_tree
from treeopt.cli.options import (
    PROFILE,
    Function,
    PairOptions,
    PromptOptions,
    file,
    lossy_option,
    output,
    output_file,
    pair_options,
    prompt_options,
)
from treeopt.cli.other_programs import warn_of_other_programs
from treeopt.cli.values import TEMPERATURES
from treeopt.errors import InterruptionError
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM, write_text

if TYPE_CHECKING:
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile

TREE, GRID, SYSTEMS = "TREE", "--grid", "--systems"
REFUSED = {
    TREE: {
        "plot": "one tree gives no picture of a bench. Bench many with --grid, or draw the tree with treeopt show.",
        "same_prompts": "held-out prompts are decoded. Leave it out, or bench many trees with --grid.",
    },
    GRID: {},
    SYSTEMS: {
        "same_prompts": "all systems decode prompts that none was measured on. Leave it out.",
        "rule": "each system verifies by a rule of its own. Leave it out, or name systems of that rule.",
        "lossy": "only systems that keep the target's distribution are compared. Leave it out.",
    },
}
"""Options that a mode has no use for, and what to do instead; all others are honoured."""
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is decoded, by which pair, beside which profile, and where the results go."""

    profile_path: Path
    profile_named: bool
    """Whether the user named the profile."""
    rule: str | None
    temperatures: tuple[float, ...]
    """Empty for those of the profile."""
    lossy: bool
    prompts: PromptOptions
    max_new_tokens: int | None
    repeats: int | None
    pair: PairOptions
    path: Path | None
    """Of the JSON file."""
    plot: Path | None

    @property
    def temperature(self) -> float | None:
        """The temperature of a mode that takes one; None for the profile's first."""
        return self.temperatures[0] if self.temperatures else None

    def check_plot(self) -> None:
        """Raise for a picture of no known kind, before any long work."""
        if self.plot is not None:
            checked_suffix(self.plot)

    def publish(self, table: str, report: str) -> None:
        """Print the table, on standard error where the JSON goes to standard output, and write the JSON."""
        click.echo(table, err=self.path is not None and str(self.path) == STANDARD_STREAM)
        if self.path is not None:
            write_text(self.path, report)


def bench_options(function: Function) -> Function:
    """Add the options of all modes; the command receives them as one `asked`."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        alias = kwargs.pop("temperatures_alias")
        if alias is not None and kwargs["temperatures"] is not None:
            raise click.UsageError("--temperature, --temperatures: expected one of them. Leave the second out.")
        kwargs["temperatures"] = alias or kwargs["temperatures"] or ()
        named = click.get_current_context().get_parameter_source("profile_path") is not ParameterSource.DEFAULT
        own = {name: kwargs.pop(name) for name in BenchOptions.__dataclass_fields__ if name in kwargs}
        return function(*args, asked=BenchOptions(profile_named=named, **own), **kwargs)

    options: list[Callable[[Any], Any]] = [
        prompt_options,
        click.option(
            "--profile",
            "profile_path",
            type=file,
            default=PROFILE,
            show_default=True,
            help="What was measured, written by treeopt profile; --systems measures anew unless a file is named.",
        ),
        click.option("--rule", help="Verification rule; by default the tree's, with --grid the best measured."),
        click.option(
            "--temperature",
            "temperatures",
            type=TEMPERATURES,
            metavar="NUMBERS",
            help="Temperature; by default the profile's first. --systems takes several with commas, by default 0,0.6.",
        ),
        click.option(
            "--temperatures",
            "temperatures_alias",
            type=TEMPERATURES,
            metavar="NUMBERS",
            hidden=True,
            help="--temperature by its old name.",
        ),
        lossy_option,
        click.option(
            "--max-new-tokens",
            type=click.IntRange(min=1),
            help="Tokens per prompt, the last step decoded to its end; by default as many as the profile measured, with "
            "--systems 192.",
        ),
        click.option(
            "--repeats",
            type=click.IntRange(min=1),
            help=f"Times each prompt is decoded, the median counts; by default {REPEATS}, with --systems 2.",
        ),
        click.option(
            "--plot", type=output_file, help="With --systems or --grid: picture to write too, .svg, .png or .pdf."
        ),
        click.option("-o", "--output", "path", type=output, help="JSON file to write as well; - is standard output."),
        pair_options,
    ]
    added: Any = command
    for option in reversed(options):
        added = option(added)
    return added  # type: ignore[no-any-return]


def refuse_useless(mode: str, asked: BenchOptions) -> None:
    """Raise click.UsageError for an option that was given and that the mode has no use for."""
    context = click.get_current_context()
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name, reason in REFUSED[mode].items():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{flags[name]} with {mode}: {reason}")
    if mode != SYSTEMS and len(asked.temperatures) > 1:
        raise click.UsageError(f"--temperature with {mode}: expected one. Got {len(asked.temperatures)}: bench each.")


def load_fitting(
    asked: BenchOptions,
    profile: "Profile | None" = None,
    *,
    tree: Path | None = None,
    planned: "TreeFile | None" = None,
) -> "ModelPair":
    """Load the pair that decodes: the one place of bench where profile, tree, models and machine meet.

    Raises TreeoptError for a profile of other models, whose promise says nothing of these.  What else differs, a tree
    that was planned for others, and other programs that use the processors, are warned of.
    """
    models = asked.pair.load()
    here = identity_here(models)
    if profile is not None:
        refuse_other_pair(asked.profile_path, profile, here)
    if tree is not None and planned is not None:
        warn_of_tree(tree, planned.provenance, here)
    warn_of_other_programs(models.target)
    return models


def check_whole(decoded: int, asked: int) -> None:
    """Raise InterruptionError where a bench was interrupted, after its results are printed."""
    if decoded < asked:
        raise InterruptionError(
            f"interrupted after {decoded} of {asked} prompts; the numbers are from those. Run it again for the rest."
        )
