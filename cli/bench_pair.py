"""The pair that a bench decodes with: the one place where profile, tree, models and machine meet."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.identity import check_models, identity_here, identity_of, load_models
from treeopt.cli.options.bench import BenchMethodsOptions, BenchOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.cli.other_programs import warn_of_other_programs
from treeopt.errors import InterruptionError
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.records.bench_heading import BenchHeading
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile


def profile_of_texts(asked: BenchOptions) -> "Profile":
    """Return the profile of texts as long as those that are decoded, which promises more of longer ones."""
    from treeopt.planner import for_new_tokens

    profile = decoder_profile(asked.profile_path)
    return profile if asked.max_new_tokens is None else for_new_tokens(profile, asked.max_new_tokens)


def decoder_profile(path: Path) -> "Profile":
    """Return a profile of treeopt's own decoder; click.UsageError for one of a serving engine."""
    profile = load_profile(path)
    if profile.engine is not None:
        name = profile.engine.name
        raise click.UsageError(
            f"{path}: expected a profile of treeopt's own decoder. Got one of {name}: treeopt bench engine {name} --profile "
            f"{quoted(path)}."
        )
    return profile


def load_fitting(
    asked: BenchOptions | BenchMethodsOptions,
    profile: "Profile | None" = None,
    *,
    tree: Path | None = None,
    planned: "TreeFile | None" = None,
) -> "ModelPair":
    """Load the models that a profile names, or those of the options, and warn of other programs on the processors.

    Raises TreeoptError for a profile or a tree of other models, whose predictions do not hold for these, unless forced.
    """
    if profile is None or asked.profile_path is None:
        models = asked.pair.load()
    else:
        models = load_models(asked.pair, asked.profile_path, identity_of(profile), force=asked.force)
    if tree is not None and planned is not None:
        from treeopt.records.identity import Identity

        check_models(tree, Identity.planned_for(planned.provenance), identity_here(models), force=asked.force)
    warn_of_other_programs(models.target)
    return models


def heading_here(models: "ModelPair") -> "BenchHeading":
    """Return what a bench that has just ended is of."""
    from treeopt.profiler.machine import describe_machine, now
    from treeopt.records.bench_heading import BenchHeading

    return BenchHeading(created=now(), machine=describe_machine(models.target.device), pair=models.described)


def check_whole(rounds: int, wanted: int) -> None:
    """Raise InterruptionError after the results of an interrupted benchmark are printed."""
    if rounds < wanted:
        raise InterruptionError(
            f"interrupted after {rounds} of {wanted} rounds; the numbers are from those. Run it again for the rest."
        )
