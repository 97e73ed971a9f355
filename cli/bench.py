"""`treeopt bench`: measured speedups next to their predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import click

from treeopt.cli.command import LazyGroup
from treeopt.report.text import quoted


class BenchCommands(LazyGroup):
    """The benchmarks; an unknown one is an error that lists them."""

    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {
        "tree": ("bench_tree", "Decode with one tree, next to its prediction."),
        "grid": ("bench_grid", "Decode with many trees, next to their predictions."),
        "batches": ("bench_batches", "Decode batches of several sizes, next to predictions."),
        "methods": ("bench_methods", "Compare methods of speculation on this machine."),
        "engine": ("bench_engine", "Run a serving engine with several draft lengths."),
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.subcommands and not name.startswith("-") and not ctx.resilient_parsing:
            hint = f": treeopt bench tree {' '.join(map(quoted, args))}" if Path(name).is_file() else ""
            raise click.UsageError(f"expected one of {', '.join(self.subcommands)}. Got {name!r:.60}{hint}.", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=BenchCommands, subcommand_metavar=f"{'|'.join(BenchCommands.subcommands)} [ARGS]...")
def bench() -> None:
    """Measure speedups next to their predictions.

    Each benchmark decodes held-out prompts plainly and with speculation, in interleaved runs, and prints measurements next
    to predictions.
    """
