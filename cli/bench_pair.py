"""The pair that a bench decodes with: the one place where profile, tree, models and machine meet."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.identity import identity_here, refuse_other_pair, warn_of_tree
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
    """Load the pair that decodes.

    Raises TreeoptError for a profile of other models, whose promise says nothing of these.  What else differs, a tree
    that was planned for others, and other programs that use the processors, are warned of.
    """
    models = asked.pair.load()
    here = identity_here(models)
    if profile is not None and asked.profile_path is not None:
        refuse_other_pair(asked.profile_path, profile, here)
    if tree is not None and planned is not None:
        warn_of_tree(tree, planned.provenance, here)
    warn_of_other_programs(models.target)
    return models


def heading_here(models: "ModelPair") -> "BenchHeading":
    """Return what a bench that has just ended is of."""
    from treeopt.profiler.machine import describe_machine, now
    from treeopt.records.bench_heading import BenchHeading

    return BenchHeading(created=now(), machine=describe_machine(models.target.device), pair=models.described)


def check_whole(decoded: int, asked: int) -> None:
    """Raise InterruptionError where a bench was interrupted, after its results are printed."""
    if decoded < asked:
        raise InterruptionError(
            f"interrupted after {decoded} of {asked} prompts; the numbers are from those. Run it again for the rest."
        )
