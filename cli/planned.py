"""A tree file that is to be decoded with: its drafter, found where the user says, and warned of where it is another."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.terminal import warn
from treeopt.errors import Warning

if TYPE_CHECKING:
    from treeopt.runtime.drafters.loaded import LoadedDrafter
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile
    from treeopt.trees.drafter_setting import DrafterSetting


def with_drafter(
    path: Path, planned: "TreeFile", asked: "DrafterSetting | None", layers: tuple[int, ...] = ()
) -> "TreeFile":
    """Return what was planned, the folder of its drafter's heads, and what they read, replaced by what was asked for.

    Raises click.UsageError for another drafter than the plan's, whose tree and numbers say nothing of it, and for
    boundaries where it has no EAGLE head.
    """
    return _with_layers(path, _with_heads(path, planned, asked), layers)


def _with_heads(path: Path, planned: "TreeFile", asked: "DrafterSetting | None") -> "TreeFile":
    if asked is None:
        return planned
    name = "model" if planned.drafter is None else planned.drafter.name
    if asked.name != name:
        raise click.UsageError(
            f"--drafter: expected {name}, which {path} was planned for. Got {asked.name}: plan for it with treeopt "
            f"profile --drafter {asked.name} and treeopt solve."
        )
    if planned.drafter is None or asked.source is None:
        return planned
    if asked.eagle_head and not planned.drafter.eagle_head:
        raise click.UsageError(
            f"--drafter: expected {name} without a folder, because {path} was planned for the draft model's trees. Got "
            f"the head {asked.source}: plan for it with treeopt profile --drafter {name}={asked.source} and treeopt solve."
        )
    return replace(planned, drafter=replace(planned.drafter, source=asked.source))


def _with_layers(path: Path, planned: "TreeFile", layers: tuple[int, ...]) -> "TreeFile":
    setting = planned.drafter
    if not layers or (setting is not None and setting.layers == layers):
        return planned
    if setting is None or not setting.eagle_head:
        name = "model" if setting is None else setting.name
        raise click.UsageError(
            f"--eagle-layers: expected a plan for an EAGLE head. {path} was planned for {name}: leave it out."
        )
    planned_layers = f"boundaries {_commas(setting.layers)}" if setting.layers else "those of the head's config.json"
    warn(
        Warning(
            f"{path} was planned with {planned_layers}, and boundaries {_commas(layers)} are read: the prediction may not "
            "hold.",
            "Leave out --eagle-layers, or profile with it and solve again.",
        )
    )
    return replace(planned, drafter=replace(setting, layers=layers))


def load_drafter_of(
    path: Path, planned: "TreeFile", models: "ModelPair", *, capacity: int | None = None
) -> "LoadedDrafter | None":
    """Load the heads of a plan's drafter and warn where they are others than planned; None for the draft model."""
    from treeopt.methods.make_drafter import load_planned

    setting = planned.drafter
    if setting is None:
        return None
    loaded = load_planned(setting, models, capacity=capacity)
    if None not in (setting.digest, loaded.digest) and setting.digest != loaded.digest:
        here = "the bundled ones" if setting.source is None else f"those in {setting.source}"
        warn(
            Warning(
                f"{path} was planned for other {setting.name} heads than {here}: the prediction does not hold.",
                f"Name the folder of the planned ones with --drafter {setting.name}=DIR, or profile and solve again.",
            )
        )
    return loaded


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
