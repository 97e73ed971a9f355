"""`treeopt bench`: whether the prediction comes true."""

from pathlib import Path

import click

from treeopt.cli.bench_options import GRID, SYSTEMS, TREE, BenchOptions, bench_options, refuse_useless
from treeopt.cli.bench_tree import bench_tree
from treeopt.cli.command import Command
from treeopt.cli.grid import bench_grid
from treeopt.cli.options import file
from treeopt.cli.systems import bench_systems


@click.command(cls=Command)
@click.argument("tree", type=file, required=False)
@click.option(
    "--systems", metavar="NAMES", help="Instead of TREE: all ways of speculating, or some, with commas between."
)
@click.option(
    "--grid", is_flag=True, help="Instead of TREE: chains, trees of several sizes and depths, and the plan's choice."
)
@click.option(
    "--same-prompts",
    is_flag=True,
    help="With --grid: decode the prompts that profiles are measured on, which leaves only the model's own errors.",
)
@bench_options
def bench(tree: Path | None, systems: str | None, grid: bool, same_prompts: bool, asked: BenchOptions) -> None:
    """Check whether a prediction comes true.

    Held-out prompts are decoded with TREE and plainly, in turn, and the result stands beside the prediction.

    With --grid many trees are decoded with, to see where predictions come true.

    With --systems all ways of speculating are profiled, planned and decoded with, on the same prompts: plain,
    prompt-lookup, chain, k-sequences, top-k-tree, medusa, redrafter, lookahead, specexec, eagle2, sequoia, treeopt.
    Those that cannot run on the pair are listed with the reason.
    """
    modes = [mode for mode, given in ((TREE, tree), (SYSTEMS, systems), (GRID, grid or None)) if given is not None]
    if len(modes) != 1:
        raise click.UsageError("TREE, --systems, --grid: expected one of them.")
    refuse_useless(modes[0], asked)
    asked.check_plot()
    if tree is not None:
        bench_tree(tree, asked)
    elif systems is not None:
        bench_systems(systems, asked)
    else:
        bench_grid(asked, same_prompts=same_prompts)
