"""What plans are held against: the speed of every tree there is, walked node by node; none shares code with treeopt."""

from collections.abc import Sequence
from operator import truediv

import numpy as np
from scipy.stats import chi2

from tests.solver.oracles import Path, Table, catalogue, node_value, paths_of, rows_of
from tests.support.invented_machines import Seconds


def least_from_here(seconds: Sequence[float]) -> list[float]:
    """Return the least seconds at 0 (none), 1, 2, … tokens or any more: what a padded pass takes."""
    return [0.0, *(min(seconds[i:]) for i in range(len(seconds)))]


def step_s(paths: Sequence[Path], machine: Seconds) -> float:
    """Return the seconds of a step with the tree of these nodes: every level pays for its nodes with children."""
    verify, draft = least_from_here(machine.verify), least_from_here(machine.draft)
    if len(paths) == 1:
        return verify[1]
    internal = [path[:-1] for path in paths if path and path[-1] == 0]
    widths = [sum(len(path) == depth for path in internal) for depth in range(max(map(len, paths)))]
    return sum(draft[width] for width in widths) + verify[len(paths)] + max(0.0, machine.overhead)


def tokens(paths: Sequence[Path], p: Table) -> float:
    rows = rows_of(p, max(map(len, paths)))
    return sum(node_value(path, rows) for path in paths)


def speedup(parents: Sequence[int], p: Table, machine: Seconds) -> float:
    """Return tokens per second of one tree over those of plain decoding."""
    paths = paths_of(parents)
    return tokens(paths, p) / step_s(paths, machine) * step_s([()], machine)


def every_speedup(
    p: Table, machine: Seconds, max_nodes: int, max_depth: int, level_widths: Sequence[int] | None = None
) -> np.ndarray:
    """Return the speedup of every tree of the catalogue; 0 for those too deep, or wider than allowed or measured."""
    trees, rows = catalogue(max_nodes), rows_of(p, max_depth)
    verify, draft = np.array(least_from_here(machine.verify)), np.array(least_from_here(machine.draft))
    allowed = (trees.depth <= max_depth) & (trees.draft_widths.max(axis=1) < len(draft))
    if level_widths is not None:
        limits = np.array(level_widths)[: trees.level_widths.shape[1]]
        allowed &= np.all(trees.level_widths[:, :max_depth] <= limits, axis=1)
    drafted_s = draft[np.minimum(trees.draft_widths, len(draft) - 1)].sum(axis=1)
    overhead_s = np.where(trees.size > 1, max(0.0, machine.overhead), 0.0)
    yielded = trees.holds @ np.array([node_value(path, rows) for path in trees.paths])
    return np.where(allowed, yielded / (verify[trees.size] + drafted_s + overhead_s) * verify[1], 0.0)


def fastest_of_most_tokens(p: Table, machine: Seconds, max_nodes: int, max_depth: int) -> float:
    """Return the largest speedup among the trees of most tokens for every depth and budget, ties included."""
    trees, rows = catalogue(max_nodes), rows_of(p, max_depth)
    yielded = trees.holds @ np.array([node_value(path, rows) for path in trees.paths])
    speedups = every_speedup(p, machine, max_nodes, max_depth)
    best = 0.0
    for depth in range(max_depth + 1):
        for nodes in range(1, max_nodes + 1):
            within = (trees.depth <= depth) & (trees.size <= nodes)
            most = yielded[within].max()
            best = max(best, speedups[within & (yielded >= most * (1 - 1e-12))].max())
    return best


def in_falling_order(row: Sequence[float]) -> list[list[int]]:
    """Return the places of a row in blocks whose means fall: neighbours out of order are merged until none is left."""
    blocks = [[place] for place in range(len(row))]
    while True:
        means = [sum(row[place] for place in block) / len(block) for block in blocks]
        wrong = [i for i in range(len(blocks) - 1) if means[i] < means[i + 1]]
        if not wrong:
            return blocks
        blocks[wrong[0] : wrong[0] + 2] = [blocks[wrong[0]] + blocks[wrong[0] + 1]]


def smoothed(row: Sequence[float], variance: Sequence[float]) -> tuple[list[float], int]:
    """Return a row with every block of `in_falling_order` at its mean unless noise is unlikely to have made it.

    A block stays where one of its variances is 0 or a chi-squared test rejects equal means at 1 in 1000. The second
    value counts the blocks that stay.
    """
    result, kept = list(row), 0
    for block in in_falling_order(row):
        mean = sum(row[place] for place in block) / len(block)
        squares = [(row[place] - mean) ** 2 for place in block]
        if max(squares) == 0:
            continue
        errors = [variance[place] for place in block]
        sure = min(errors) == 0 or sum(map(truediv, squares, errors)) > chi2.ppf(0.999, len(block) - 1)
        kept += sure
        for place in [] if sure else block:
            result[place] = mean
    return result, kept
