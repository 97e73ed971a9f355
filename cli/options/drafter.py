"""The options that name a drafter, the folder of its heads, and what an EAGLE head reads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import BOUNDARIES, TEXT
from treeopt.trees.drafter_setting import DRAFTERS, FROM_FOLDER, DrafterSetting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class DrafterName(click.ParamType[DrafterSetting]):
    """A drafter, `NAME`, or `NAME=DIR` with the folder of its heads; its numbers are left open."""

    name = "drafter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DrafterSetting:
        """Return the drafter; a usage error for unknown names, and for a folder where none is read."""
        if isinstance(value, DrafterSetting):
            return value
        name, separator, folder = TEXT.convert(value, param, ctx).partition("=")
        if name not in DRAFTERS:
            self.fail(f"expected one of {', '.join(DRAFTERS)}. Got {name!r:.60}.", param, ctx)
        if separator and not folder:
            self.fail(f"expected a folder behind {name}=. Got none: name it, or leave out the =.", param, ctx)
        if folder and name not in FROM_FOLDER:
            self.fail(f"expected no folder, because {name} reads none. Got {folder!r:.60}: leave it out.", param, ctx)
        return DrafterSetting(name=name, source=folder or None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return the names that begin so."""
        del ctx, param
        from click.shell_completion import CompletionItem

        return [CompletionItem(each) for each in DRAFTERS if each.startswith(incomplete)]


DRAFTER = DrafterName()
PLANNED_DRAFTER = option(
    "--drafter",
    type=DRAFTER,
    metavar="NAME[=DIR]",
    help="Where the heads of the tree's drafter lie, if no longer where the tree file says.",
)
EAGLE_LAYERS = option(
    "--eagle-layers",
    heading=Heading.MODELS,
    type=BOUNDARIES,
    default=(),
    metavar="NUMBERS",
    help="Boundaries of the target's layers that an EAGLE-3 head reads, 0 the embedding, in place of those of its "
    "config.json; with commas between.",
)
PLANNED_EAGLE_LAYERS = option(
    "--eagle-layers",
    heading=Heading.MODELS,
    type=BOUNDARIES,
    default=(),
    metavar="NUMBERS",
    help="Boundaries of the target's layers that the EAGLE-3 head of the tree file reads, if not those that it was planned with.",
)


def with_layers(drafters: Sequence[DrafterSetting], layers: tuple[int, ...]) -> tuple[DrafterSetting, ...]:
    """Return drafters, those with an EAGLE head reading the boundaries that were given, if any were.

    Raises click.UsageError where there is none.
    """
    if layers and not any(each.eagle_head for each in drafters):
        raise click.UsageError(
            "--eagle-layers: expected --drafter eagle, or --drafter eagle2=DIR, whose head reads them. Got neither: name "
            "one, or leave it out."
        )
    return tuple(replace(each, layers=layers) if layers and each.eagle_head else each for each in drafters)
