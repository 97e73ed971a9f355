"""Removing drift of the machine's speed from samples of several sizes that were timed in turns.

Sizes are timed in blocks: a block takes seconds, contains several sizes, and not the same ones as the block before.  A size
that was timed only while the machine was fast looks faster than it is.  So log seconds are fitted as level of the size plus
level of the block, as in the analysis of incomplete block designs (Yates, 1936), and the levels of blocks are removed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from treeopt.arrays import Float64, Int64

RIDGE = 1e-3
"""Weight of level 0 for each block, in samples: decides where a block has no size in common with others."""
ROBUST = 0.02
"""Samples off by more than this, in log seconds, count less the farther they are off."""
ITERATIONS = 8


def remove_drift(samples: Mapping[int, Sequence[float]], blocks: Mapping[int, Sequence[int]]) -> dict[int, list[float]]:
    """Return samples at the usual speed of the machine, the median over all samples.

    Args:
        samples: seconds by size.
        blocks: the number of each sample's block, shaped like `samples`.
    """
    if len({block for numbers in blocks.values() for block in numbers}) < 2:
        return {size: list(seconds) for size, seconds in samples.items()}
    sizes = np.repeat(np.arange(len(samples)), [len(seconds) for seconds in samples.values()])
    number = np.concatenate([np.asarray(blocks[size]) for size in samples])
    logs = np.log(np.concatenate([np.asarray(seconds, np.float64) for seconds in samples.values()]))
    levels = block_levels(logs, sizes, np.unique(number, return_inverse=True)[1])
    evened = np.exp(logs - levels)
    ends = np.cumsum([len(seconds) for seconds in samples.values()])[:-1]
    return {size: part.tolist() for size, part in zip(samples, np.split(evened, ends), strict=True)}


def block_levels(logs: Float64, sizes: Int64, blocks: Int64) -> Float64:
    """Return the level of each sample's block, with median 0, by least absolute deviations (iteratively reweighted).

    Args:
        logs: (n,), log seconds.
        sizes: (n,), index of the size of each sample.
        blocks: (n,), index of its block.
    """
    size_count, block_count = sizes.max() + 1, blocks.max() + 1
    cells, weights = sizes * block_count + blocks, np.ones(len(logs))
    for _ in range(ITERATIONS):
        cross = np.bincount(cells, weights, size_count * block_count).reshape(size_count, block_count)
        normal = np.block([[np.diag(cross.sum(1)), cross], [cross.T, np.diag(cross.sum(0) + RIDGE)]])
        totals = [np.bincount(each, weights * logs) for each in (sizes, blocks)]
        size_levels, levels = np.split(np.linalg.solve(normal, np.concatenate(totals)), [size_count])
        residuals = logs - size_levels[sizes] - levels[blocks]
        weights = 1 / np.maximum(np.abs(residuals) / ROBUST, 1)
    return np.asarray(levels[blocks] - np.median(levels[blocks]))
