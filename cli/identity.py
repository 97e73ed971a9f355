"""The models and the machine of a profile or tree file: loading them, and errors and warnings for others."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt import bundled as bundle
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.terminal import warn
from treeopt.errors import TreeoptError
from treeopt.records.identity import Identity, machine_mismatch_warning, pair_mismatch_warning
from treeopt.records.machine import AUTO
from treeopt.records.profile import Profile

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

OWN_PROFILE = "name its own profile with --profile"
"""Remedy for a tree and a profile of different models."""


def identity_here(models: "ModelPair") -> Identity:
    """Return the identity of loaded models on this machine."""
    from treeopt.profiler.machine import describe_machine

    return Identity.of(models.described, describe_machine(models.target.device))


def identity_of(profile: Profile) -> Identity:
    return Identity.of(profile.pair, profile.machine)


def load_models(
    pair: PairOptions, path: Path, planned: Identity, *, draft: bool = True, force: bool = False
) -> "ModelPair":
    """Load the models that a file names, with its dtype, device and threads, unless options name others.

    Args:
        pair: the options.
        path: the file.
        planned: its identity.
        draft: whether its draft model is needed.
        force: allow other models, and the bundled pair if the file does not name the paths of its models.

    Raises TreeoptError for a model of the file that is missing, and for other models unless `force` is set.
    """
    completed = _with_models(pair, path, planned, draft=draft, force=force)
    try:
        models = _with_conditions(completed, planned).load()
    except TreeoptError as error:
        for name in ("target", "draft"):
            folder = getattr(planned, name)
            if getattr(pair, name) is None and getattr(completed, name) is not None and not Path(folder).exists():
                raise TreeoptError(f"{error} {path} names {folder}; if it has moved, add --{name} DIR.") from None
        raise
    here = identity_here(models)
    check_models(path, planned if draft else planned.without_draft, here if draft else here.without_draft, force=force)
    return models


def _with_models(pair: PairOptions, path: Path, planned: Identity, *, draft: bool, force: bool) -> PairOptions:
    if planned.pair is None or planned.bundled:
        draft_alone = pair.target is None and pair.draft is not None
        return replace(pair, target=bundle.TARGET) if draft_alone else pair
    if planned.target is None and pair.target is None and not force:
        raise TreeoptError(
            f"{path}: expected the folders or hub names of its models, {planned.pair}. It has none: name them with "
            f"--target{' and --draft' if draft else ''}, or use the bundled pair with --force."
        )
    target = pair.target or (None if planned.target is None else Path(planned.target))
    planned_draft = None if planned.draft is None or not draft or target is None else Path(planned.draft)
    return replace(pair, target=target, draft=pair.draft or planned_draft)


def _with_conditions(pair: PairOptions, planned: Identity) -> PairOptions:
    """Return the options with the device, dtype and threads of a file, if no option sets them and they are available."""
    from treeopt.runtime.models.gguf.file import is_gguf
    from treeopt.runtime.models.load import DTYPES, has_device

    device, dtype, threads = pair.device, pair.dtype, pair.threads
    if device == AUTO and planned.device is not None and has_device(planned.device):
        device = planned.device
    all_gguf = pair.target is not None and all(
        is_gguf(model) for model in (pair.target, pair.draft) if model is not None
    )
    if dtype == AUTO and planned.dtype in DTYPES and not all_gguf:  # GGUF files keep their own
        dtype = planned.dtype
    if threads is None and planned.threads is not None and planned.threads <= (os.cpu_count() or 1):
        threads = planned.threads
    return replace(pair, device=device, dtype=dtype, threads=threads)


def check_models(path: Path, planned: Identity, here: Identity, *, force: bool, remedy: str | None = None) -> None:
    """Raise TreeoptError for models other than a file's, unless `force`; warn as `warn_of_differences` does."""
    if not planned.same_pair(here) and not force:
        same = " by their names, with other weights" if here.pair == planned.pair else ""
        raise TreeoptError(
            f"{path}: expected its own models, {planned.pair}. Got {here.pair}{same}: {remedy or _remedy(planned)}, or use "
            "these with --force."
        )
    warn_of_differences(path, planned, here, remedy)


def warn_of_differences(path: Path, planned: Identity, here: Identity, remedy: str | None = None) -> None:
    """Warn of models, machine, device, dtype or threads other than those of a file.

    Args:
        path: the file.
        planned: its identity.
        here: the current one.
        remedy: how to get the file's models; by default, options that load them.
    """
    subject = f"{path} was made for"
    if not planned.same_pair(here):
        warn(pair_mismatch_warning(subject, planned.pair, here.pair, remedy or _remedy(planned)))
    elif differing := planned.differences(here):
        warn(machine_mismatch_warning(subject, differing))


def _remedy(planned: Identity) -> str:
    if planned.model_options:
        return f"add{planned.model_options}"
    return "leave --target and --draft out" if planned.bundled else "name its models with --target and --draft"
