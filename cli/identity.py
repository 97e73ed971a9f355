"""Which models a file was measured or planned with: the models that it names, and refusals and warnings of others."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.terminal import warn
from treeopt.errors import TreeoptError
from treeopt.records.machine import AUTO

if TYPE_CHECKING:
    from treeopt.cli.options.pair import PairOptions
    from treeopt.records.identity import Identity
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair


def identity_here(models: "ModelPair") -> "Identity":
    """Return which models are loaded, and on which machine."""
    from treeopt.profiler.machine import describe_machine
    from treeopt.records.identity import Identity

    return Identity.of(models.described, describe_machine(models.target.device))


def identity_of(profile: "Profile") -> "Identity":
    """Return which models a profile was measured with, and on which machine."""
    from treeopt.records.identity import Identity

    return Identity.of(profile.pair, profile.machine)


def load_models(
    pair: "PairOptions",
    path: Path,
    planned: "Identity",
    *,
    draft: bool = True,
    force: bool = False,
    text_tokens: int = 0,
) -> "ModelPair":
    """Load the models that a file names, with its dtype, device and threads; what the user names takes precedence.

    Args:
        pair: the options.
        path: the file.
        planned: its identity.
        draft: whether its draft model is needed.
        force: take the bundled pair where the file does not name where its models are, and others than its own.
        text_tokens: the longest sequence that is planned for.

    Raises TreeoptError where a model of the file cannot be found, and for other models than its own unless `force`.
    """
    asked = _with_models(pair, path, planned, draft=draft, force=force)
    try:
        models = _with_conditions(asked, planned).load(text_tokens=text_tokens)
    except TreeoptError as error:
        for name in ("target", "draft"):
            folder = getattr(planned, name)
            if getattr(pair, name) is None and getattr(asked, name) is not None and not Path(folder).exists():
                raise TreeoptError(
                    f"{error} {path} names {folder}; where it is elsewhere now, add --{name} DIR."
                ) from None
        raise
    here = identity_here(models)
    check_models(path, planned if draft else planned.target_alone, here if draft else here.target_alone, force=force)
    return models


def _with_models(pair: "PairOptions", path: Path, planned: "Identity", *, draft: bool, force: bool) -> "PairOptions":
    """Return the options with the models of a file where the user names none."""
    if planned.pair is None or planned.bundled:
        return pair
    if planned.target is None and pair.target is None and not force:
        raise TreeoptError(
            f"{path}: expected the folders or hub names of its models, {planned.pair}. It has none: name them with "
            f"--target{' and --draft' if draft else ''}, or use the bundled pair with --force."
        )
    target = pair.target or (None if planned.target is None else Path(planned.target))
    named = None if planned.draft is None or not draft or target is None else Path(planned.draft)
    return replace(pair, target=target, draft=pair.draft or named)


def _with_conditions(pair: "PairOptions", planned: "Identity") -> "PairOptions":
    """Return the options with the device, dtype and threads of a file where the user names none and they are there."""
    from treeopt.runtime.models.pair import DTYPES, is_there

    device, dtype, threads = pair.device, pair.dtype, pair.threads
    if device == AUTO and planned.device is not None and is_there(planned.device):
        device = planned.device
    if dtype == AUTO and planned.dtype in DTYPES:
        dtype = planned.dtype
    if threads is None and planned.threads is not None and planned.threads <= (os.cpu_count() or 1):
        threads = planned.threads
    return replace(pair, device=device, dtype=dtype, threads=threads)


def check_models(path: Path, planned: "Identity", here: "Identity", *, force: bool = False) -> None:
    """Refuse other models than a file names, unless forced; warn of another machine, device, dtype or threads.

    Raises TreeoptError naming both, and the options that load the file's.
    """
    if not planned.same_pair(here) and not force:
        same = " by their names, with other weights" if here.pair == planned.pair else ""
        raise TreeoptError(
            f"{path}: expected its own models, {planned.pair}. Got {here.pair}{same}: {_remedy(planned)}, or use these "
            "with --force."
        )
    warn_of_other(f"{path} was made for", planned, here)


def warn_of_other(subject: str, planned: "Identity", here: "Identity") -> None:
    """Warn of other models or another machine than a prediction is for.

    Args:
        subject: what was predicted, up to a preposition, such as `tree.json was planned for`.
        planned: what it is for.
        here: what is there.
    """
    from treeopt.records.identity import other_conditions_warning, other_pair_warning

    if not planned.same_pair(here):
        warn(other_pair_warning(subject, planned.pair, here.pair, _remedy(planned)))
    elif differing := planned.differences(here):
        warn(other_conditions_warning(subject, differing))


def _remedy(planned: "Identity") -> str:
    if planned.models:
        return f"add{planned.models}"
    return "leave --target and --draft out" if planned.bundled else "name its models with --target and --draft"
