"""`treeopt bench`: whether predictions come true."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import click

from treeopt.cli.lazy import LazyGroup, Place
from treeopt.report.text import quoted


class BenchCommands(LazyGroup):
    """The benchmarks; each is imported when it is called."""

    places: ClassVar[Mapping[str, Place]] = {
        "tree": Place("bench_tree", "Decode with a tree, next to its prediction."),
        "grid": Place("bench_grid", "Decode with many trees, next to their predictions."),
        "batches": Place("bench_batches", "Decode several sequences together, next to predictions."),
        "methods": Place("bench_methods", "Compare all methods of speculation on this machine."),
        "engine": Place("bench_engine", "Run a serving engine with several draft lengths."),
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand; a usage error that names all of them for any other word."""
        name = args[0]
        if name not in self.places and not name.startswith("-") and not ctx.resilient_parsing:
            hint = f": treeopt bench tree {' '.join(map(quoted, args))}" if Path(name).is_file() else ""
            raise click.UsageError(f"expected one of {', '.join(self.places)}. Got {name!r:.60}{hint}.", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=BenchCommands, subcommand_metavar=f"{'|'.join(BenchCommands.places)} [ARGS]...")
def bench() -> None:
    """Check whether predictions come true.

    Every benchmark decodes held-out prompts plainly and with speculation, in interleaved runs, and prints what was
    measured next to what was predicted.
    """
