"""`treeopt bench`: whether the prediction comes true."""

import click

from treeopt.cli.bench_batches import bench_batches
from treeopt.cli.bench_engine import bench_engine
from treeopt.cli.bench_grid import bench_grid
from treeopt.cli.bench_methods import bench_methods
from treeopt.cli.bench_tree import bench_tree
from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchOptions
from treeopt.cli.options.record import options


@click.command(cls=Command)
@options(BenchOptions)
def bench(asked: BenchOptions) -> None:
    """Check whether a prediction comes true.

    Held-out prompts are decoded with TREE and plainly, in turn, and the result stands beside the prediction.

    With --batch-size so many texts are decoded at a time, with TREE, with a schedule, or with what is planned for each
    size, and plainly.

    With --grid many trees are decoded with, to see where predictions come true.

    With --methods all ways of speculating are profiled, planned and decoded with, on the same prompts: plain,
    prompt-lookup, chain, osd, k-sequences, top-k-tree, medusa, redrafter, eagle, lookahead, specexec, eagle2, sequoia, treeopt.
    Those that cannot run on the pair are listed with the reason.

    With --engine draft lengths are raced in an engine that treeopt probe has measured, the plan's among them.
    """
    asked.check()
    if asked.batch_sizes:
        bench_batches(asked)
    elif asked.tree is not None:
        bench_tree(asked.tree, asked)
    elif asked.engine is not None:
        bench_engine(asked.engine, asked)
    elif asked.methods is not None:
        bench_methods(asked.methods, asked)
    else:
        bench_grid(asked)
