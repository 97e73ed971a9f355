"""Options that name a drafter, and the drafter of a tree file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import LENGTH, TEXT, comma_list
from treeopt.cli.terminal import warn
from treeopt.errors import Warning
from treeopt.trees import TreeFile
from treeopt.trees.drafter_setting import BLOCK_DRAFTERS, DRAFTERS, HEAD_DRAFTERS, DrafterSetting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from treeopt.runtime.drafters.registry import LoadedDrafter
    from treeopt.runtime.models.pair import ModelPair


class DrafterName(click.ParamType[DrafterSetting]):
    """A drafter, `NAME`, or `NAME=DIR` with the folder of its heads."""

    name = "name[=dir]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DrafterSetting:
        if isinstance(value, DrafterSetting):
            return value
        name, separator, folder = TEXT.convert(value, param, ctx).partition("=")
        if name not in DRAFTERS:
            self.fail(f"expected one of {', '.join(DRAFTERS)}. Got {name!r:.60}.", param, ctx)
        if separator and not folder:
            self.fail(f"expected a folder after {name}=. Got none: name it, or leave out the =.", param, ctx)
        if folder and name not in HEAD_DRAFTERS:
            self.fail(f"expected no folder, because {name} reads none. Got {folder!r:.60}: leave it out.", param, ctx)
        return DrafterSetting(name=name, source=folder or None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        del ctx, param
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in DRAFTERS if name.startswith(incomplete)]


DRAFTER = DrafterName()


def moved_drafter_option() -> Any:
    return option(
        "--drafter",
        type=DRAFTER,
        help="The planned drafter with the current folder of its heads, if they have moved since planning.",
    )


def eagle_layers_option(default: str) -> Any:
    """Return the option of an EAGLE head's inputs; `default` describes those that it reads without the option."""
    return Heading.MODELS.option(
        "--eagle-layers",
        type=comma_list("layer ids of the target, whole numbers of at least 0", LENGTH.parse, "2,6,9"),
        default=(),
        help="Layer ids of the target's hidden states that the EAGLE-3 or P-EAGLE head reads, 0 for the embedding, "
        f"separated by commas; by default {default}.",
    )


def with_layers(drafters: Sequence[DrafterSetting], layers: tuple[int, ...]) -> tuple[DrafterSetting, ...]:
    """Return drafters, those with an EAGLE head reading `layers`, unless these are empty.

    Raises click.UsageError if no drafter has an EAGLE head.
    """
    if layers and not any(drafter.eagle_head for drafter in drafters):
        raise click.UsageError(
            "--eagle-layers: expected --drafter eagle, p-eagle=DIR or eagle2=DIR, whose head reads them. Got none: name "
            "one, or leave it out."
        )
    return tuple(replace(drafter, layers=layers) if layers and drafter.eagle_head else drafter for drafter in drafters)


def with_blocks(drafters: Sequence[DrafterSetting], blocks: tuple[int, ...]) -> tuple[DrafterSetting, ...]:
    """Return drafters, those with a DFlash head once for each block size, unless there are none.

    Raises click.UsageError if no drafter has such a head.
    """
    if blocks and not any(drafter.name in BLOCK_DRAFTERS for drafter in drafters):
        raise click.UsageError(
            f"--block-draft-tokens: expected --drafter {', '.join(BLOCK_DRAFTERS)}, whose blocks they are. Got none: name "
            "one, or leave it out."
        )
    return tuple(
        replace(drafter, block_draft_tokens=block)
        for drafter in drafters
        for block in (blocks if blocks and drafter.name in BLOCK_DRAFTERS else (None,))
    )


def move_drafter(
    path: Path, planned: TreeFile, drafter: DrafterSetting | None, layers: tuple[int, ...] = ()
) -> TreeFile:
    """Return a plan with the folder of `drafter`'s heads, and with the hidden states that they read.

    Raises click.UsageError for a drafter other than the plan's, and for `layers` without an EAGLE head.
    """
    if drafter is not None:
        planned = _move_heads(path, planned, drafter)
    setting = planned.drafter
    if not layers or (setting is not None and setting.layers == layers):
        return planned
    if setting is None or not setting.eagle_head:
        name = "model" if setting is None else setting.name
        raise click.UsageError(
            f"--eagle-layers: expected a plan for an EAGLE head. {path} was planned for {name}: leave it out."
        )
    planned_layers = f"layers {_join(setting.layers)}" if setting.layers else "those of the head's config.json"
    warn(
        Warning(
            f"{path} was planned with {planned_layers}, and layers {_join(layers)} are read: the prediction may not hold.",
            "Leave out --eagle-layers, or profile with it and solve again.",
        )
    )
    return replace(planned, drafter=replace(setting, layers=layers))


def _move_heads(path: Path, planned: TreeFile, drafter: DrafterSetting) -> TreeFile:
    name = "model" if planned.drafter is None else planned.drafter.name
    if drafter.name != name:
        raise click.UsageError(
            f"--drafter: expected {name}, which {path} was planned for. Got {drafter.name}: plan for it with treeopt "
            f"profile --drafter {drafter.name} and treeopt solve."
        )
    if planned.drafter is None or drafter.source is None:
        return planned
    if drafter.eagle_head and not planned.drafter.eagle_head:
        raise click.UsageError(
            f"--drafter: expected {name} without a folder, because {path} was planned for the draft model's trees. Got "
            f"the head {drafter.source}: plan for it with treeopt profile --drafter {name}={drafter.source} and treeopt "
            "solve."
        )
    return replace(planned, drafter=replace(planned.drafter, source=drafter.source))


def load_planned_drafter(
    path: Path, planned: TreeFile, models: "ModelPair", *, capacity: int | None = None
) -> "LoadedDrafter | None":
    """Load the heads of a plan's drafter, with a warning if they differ from the planned ones; None for the draft model."""
    from treeopt.runtime.drafters.registry import load_drafter

    setting = planned.drafter
    if setting is None:
        return None
    loaded = load_drafter(setting, models, capacity=capacity)
    if None not in (setting.digest, loaded.setting.digest) and setting.digest != loaded.setting.digest:
        heads = "the bundled ones" if setting.source is None else f"those in {setting.source}"
        warn(
            Warning(
                f"{path} was planned for other {setting.name} heads than {heads}: the prediction does not hold.",
                f"Name the folder of the planned ones with --drafter {setting.name}=DIR, or profile and solve again.",
            )
        )
    return loaded


def _join(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
