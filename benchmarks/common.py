"""Functions that the benchmarks share."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

if TYPE_CHECKING:
    from treeopt.profiler import Settings
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair

Item = TypeVar("Item")


def describe_environment() -> str:
    """Return the versions of treeopt, Python and torch, the time and the processor."""
    import torch

    from treeopt.profiler.machine import describe_machine, now
    from treeopt.version import TOOL

    machine = describe_machine(torch.device("cpu"))
    return (
        f"{TOOL}, {now()}, {machine.processor}, {machine.threads} thread{'s' * (machine.threads != 1)}, "
        f"{machine.system}, Python {machine.python}, torch {machine.torch}"
    )


def default_prompts(models: "ModelPair") -> list[list[int]]:
    """Return treeopt's default prompts for a pair as token ids, in the target's chat template if it has one."""
    from treeopt.cli.options.prompts import PromptOptions
    from treeopt.texts.prompts import MAX_PROMPTS

    return PromptOptions(prompts=None, chat=None, max_prompts=MAX_PROMPTS).load(models)


def measure_profile(models: "ModelPair", settings: "Settings") -> "Profile":
    """Profile a pair on treeopt's default prompts that are not held out."""
    from treeopt.profiler import Checkpoint, Measurement, clock_for
    from treeopt.texts.prompts import profile_prompts

    return Measurement(
        models.target,
        models.draft_model,
        profile_prompts(default_prompts(models)),
        settings,
        clock=clock_for(models.target.device),
        checkpoint=Checkpoint(None, ""),
    ).profile()


def progress(items: Collection[Item], title: str) -> Iterable[Item]:
    """Iterate over items with a progress bar if standard error is a terminal; print with `tqdm.write` meanwhile."""
    return tqdm(items, desc=title, leave=False, disable=None)
