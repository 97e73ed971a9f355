"""`treeopt bench`: measured speedups next to their predictions."""

from collections.abc import Mapping
from typing import ClassVar

import click

from treeopt.cli.command import LazyGroup


class BenchCommands(LazyGroup):
    """The benchmarks."""

    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {
        "tree": ("bench_tree", "Decode with one tree, next to its prediction."),
        "grid": ("bench_grid", "Decode with many trees, next to their predictions."),
        "batches": ("bench_batches", "Decode batches of several sizes, next to predictions."),
        "methods": ("bench_methods", "Compare methods of speculation on this machine."),
        "engine": ("bench_engine", "Run a serving engine with several draft lengths."),
    }


@click.group(cls=BenchCommands, subcommand_metavar=f"{'|'.join(BenchCommands.subcommands)} [ARGS]...")
def bench() -> None:
    """Measure speedups next to their predictions.

    Each benchmark decodes held-out prompts plainly and with speculation, in interleaved runs, and prints measurements next
    to predictions.
    """
