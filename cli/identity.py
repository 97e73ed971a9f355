"""What a promise is of and what is there now, for the user: warnings, refusals, and the options that bring it about."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.terminal import warn
from treeopt.errors import TreeoptError

if TYPE_CHECKING:
    from treeopt.records.identity import Identity
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import Provenance

BUNDLED = "leave out --target and --draft"


def identity_here(models: "ModelPair") -> "Identity":
    """Return what has been loaded, on the machine that it runs on."""
    from treeopt.profiler.machine import describe_machine
    from treeopt.records.identity import Identity

    return Identity.of(models.described, describe_machine(models.target.device))


def identity_of(profile: "Profile") -> "Identity":
    """Return what a profile was measured of."""
    from treeopt.records.identity import Identity

    return Identity.of(profile.pair, profile.machine)


def next_options(profile: "Profile") -> str:
    """Return the options with which a printed command decodes with a profile's pair, as it was measured."""
    threads = profile.machine.threads
    possible = threads is not None and threads < (os.cpu_count() or 1)
    return identity_of(profile).options(threads=None if possible else threads)


def warn_of_tree(path: Path, provenance: "Provenance | None", here: "Identity") -> None:
    """Warn where a tree was planned for other models or conditions than those that are there."""
    from treeopt.records.identity import Identity

    warn_of_other(f"{path} was planned for", Identity.planned_for(provenance), here)


def warn_of_other(said: str, promised: "Identity", here: "Identity") -> None:
    """Warn of whatever a promise does not hold for.

    Args:
        said: what was promised, up to a preposition, such as `tree.json was planned for`.
        promised: what it is of.
        here: what is there.
    """
    from treeopt.records.identity import other_conditions_warning, other_pair_warning

    if not promised.same_pair(here):
        warn(other_pair_warning(said, promised.pair, here.pair, _remedy(promised)))
    elif differing := promised.differences(here):
        warn(other_conditions_warning(said, differing))


def refuse_other_pair(path: Path, profile: "Profile", here: "Identity") -> None:
    """Refuse to put a profile's promise beside the measurement of another pair, and warn of other conditions.

    Raises TreeoptError naming both pairs and the options that load the profile's.
    """
    promised = identity_of(profile)
    if not promised.same_pair(here):
        raise TreeoptError(
            f"{path}: expected a profile of the pair that is decoded with, {here.pair}. Got one of {promised.pair}: "
            f"{_remedy(promised)}, or name the profile of {here.pair} with --profile."
        )
    warn_of_other(f"{path} was measured with", promised, here)


def _remedy(promised: "Identity") -> str:
    return f"add{promised.models}" if promised.models else BUNDLED
