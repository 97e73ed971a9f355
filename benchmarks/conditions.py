"""What benchmarks share: the line that each prints first, what it ran on, and a bar for those who wait."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

Item = TypeVar("Item")


def conditions() -> str:
    """Return treeopt's version, the time, the machine and the versions of what runs; torch is imported here."""
    import torch

    from treeopt.profiler.machine import describe_machine, now
    from treeopt.version import TOOL

    machine = describe_machine(torch.device("cpu"))
    return (
        f"{TOOL}, {now()}, {machine.processor}, {machine.threads} thread{'s' * (machine.threads != 1)}, "
        f"{machine.system}, Python {machine.python}, torch {machine.torch}"
    )


def default_prompts(models: "ModelPair") -> list[list[int]]:
    """Return treeopt's prompts for a pair as token ids, in the target's chat template where it has one."""
    from treeopt.cli.options.prompts import PromptOptions
    from treeopt.texts.prompts import MAX_PROMPTS

    return PromptOptions(path=None, chat=None, most=MAX_PROMPTS).load(models)


def bar(items: Collection[Item], title: str) -> Iterable[Item]:
    """Return the items, with a bar on standard error while they are gone through, where that is a terminal."""
    return tqdm(items, desc=title, leave=False, disable=None)


def say(line: str) -> None:
    """Print a line above the bars."""
    tqdm.write(line)
