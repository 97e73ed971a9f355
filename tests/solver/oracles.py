"""What the solver is held against: every tree enumerated, another dynamic program, greed; none shares code with it.

A table is what `AcceptanceTable` takes: one row, a row per depth, or a row per depth and rank of the parent.
A node is named by its path, the ranks on the way from the root; a tree is the set of its nodes' paths.
"""

import functools
import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Table = list[float] | list[list[float]] | list[list[list[float]]]
Rows = list[list[list[float]]]
Path = tuple[int, ...]
Shape = tuple["Shape", ...]
"""The shapes of a node's children, in rank order."""


def rows_of(p: Table, depth: int) -> Rows:
    """Return the acceptance of each rank, per depth and rank of the parent."""
    if isinstance(p[0], float):
        return [[p]] * depth
    return [row if isinstance(row[0], list) else [row] for row in p[:depth]]


def depth_of(p: Table, default: int) -> int:
    return default if isinstance(p[0], float) else len(p)


def node_value(path: Path, rows: Rows) -> float:
    """Return the probability that a step reaches a node; 0 where the table ends."""
    parents = (0, *path)
    if len(path) > len(rows) or any(rank >= len(rows[0][0]) for rank in path):
        return 0.0
    return math.prod(rows[d][min(parents[d], len(rows[d]) - 1)][rank] for d, rank in enumerate(path))


def paths_of(parents: Sequence[int]) -> list[Path]:
    """Return the path of every node of a parents array whose siblings stand in rank order."""
    paths: list[Path] = [()]
    for node in range(1, len(parents)):
        rank = sum(parents[sibling] == parents[node] for sibling in range(1, node))
        paths.append((*paths[parents[node]], rank))
    return paths


@functools.cache
def every_tree(nodes: int) -> tuple[Shape, ...]:
    return every_forest(nodes - 1)


@functools.cache
def every_forest(nodes: int) -> tuple[tuple[Shape, ...], ...]:
    if nodes == 0:
        return ((),)
    return tuple(
        (first, *others)
        for size in range(1, nodes + 1)
        for first in every_tree(size)
        for others in every_forest(nodes - size)
    )


def paths_in(shape: Shape, path: Path = ()) -> list[Path]:
    return [path, *(node for rank, child in enumerate(shape) for node in paths_in(child, (*path, rank)))]


class Catalogue(NamedTuple):
    """Every tree up to a number of nodes, which is the first axis."""

    paths: list[Path]
    holds: np.ndarray
    """(trees, paths): 1 where the tree holds the node."""
    size: np.ndarray
    depth: np.ndarray
    branching: np.ndarray
    level_widths: np.ndarray
    """(trees, nodes): nodes at depth 1, 2, …"""
    draft_widths: np.ndarray
    """(trees, nodes): internal nodes at depth 0, 1, …"""


@functools.cache
def catalogue(nodes: int) -> Catalogue:
    trees = [paths_in(shape) for size in range(1, nodes + 1) for shape in every_tree(size)]
    paths = sorted({path for tree in trees for path in tree})
    place = {path: i for i, path in enumerate(paths)}
    holds, levels, internal = np.zeros((len(trees), len(paths))), *np.zeros((2, len(trees), nodes), int)
    for i, tree in enumerate(trees):
        holds[i, [place[path] for path in tree]] = 1.0
        np.add.at(levels[i], [len(path) - 1 for path in tree if path], 1)
        np.add.at(internal[i], [len(path) - 1 for path in tree if path and path[-1] == 0], 1)  # one first child each
    return Catalogue(
        paths=paths,
        holds=holds,
        size=np.array([len(tree) for tree in trees]),
        depth=np.array([max(map(len, tree)) for tree in trees]),
        branching=np.array([1 + max((rank for path in tree for rank in path), default=-1) for tree in trees]),
        level_widths=levels,
        draft_widths=internal,
    )


def by_enumeration(
    p: Table,
    max_nodes: int,
    max_depth: int,
    level_widths: Sequence[int] | None = None,
    draft_widths: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the most expected tokens for every (depth, budget), from every tree there is."""
    rows, trees = rows_of(p, max_depth), catalogue(max_nodes)
    allowed = (trees.depth <= max_depth) & (trees.branching <= np.shape(p)[-1])
    for widths, limits in ((trees.level_widths, level_widths), (trees.draft_widths, draft_widths)):
        if limits is not None:
            allowed &= np.all(widths[:, :max_depth] <= np.array(limits)[: widths.shape[1]], axis=1)
    tokens = trees.holds @ np.array([node_value(path, rows) for path in trees.paths])
    best = np.zeros((max_depth + 1, max_nodes + 1))
    np.maximum.at(best, (trees.depth[allowed], trees.size[allowed]), tokens[allowed])
    return np.maximum.accumulate(np.maximum.accumulate(best, axis=0), axis=1)


def by_dynamic_program(p: Table, max_nodes: int, max_depth: int) -> np.ndarray:
    """Return the same from forests of exactly n nodes: a first child, what hangs below it, its later siblings."""
    rows = np.array(rows_of(p, max_depth)).reshape(max_depth, -1, np.shape(p)[-1])
    ranks, branching = rows.shape[1:]
    empty = np.full(max_nodes + 1, -np.inf)
    empty[0] = 0.0
    best = np.zeros((max_depth + 1, max_nodes + 1))
    for limit in range(max_depth + 1):
        below = [empty] * ranks
        for row in rows[:limit][::-1]:
            here = []
            for accepted in row:
                forest = empty
                for k in reversed(range(branching)):
                    children = below[min(k, ranks - 1)]
                    child = np.where(np.isinf(children), -np.inf, accepted[k] * (1 + np.maximum(children, 0)))
                    later, forest = forest, empty.copy()
                    for n in range(1, max_nodes + 1):
                        forest[n] = np.max(child[:n] + later[:n][::-1])
                here.append(forest)
            below = here
        best[limit, 1:] = np.maximum.accumulate(1 + below[0][:max_nodes])
    return best


def by_greed(p: Table, max_nodes: int, max_depth: int) -> np.ndarray:
    """Return what the likeliest next node, taken again and again, comes to: wrong where a later rank is likelier."""
    result = np.zeros((max_depth + 1, max_nodes + 1))
    for limit in range(max_depth + 1):
        rows, tokens = rows_of(p, limit), 0.0
        offers: list[tuple[float, Path]] = [(-1.0, ())]
        for n in range(1, max_nodes + 1):
            if offers:
                largest, path = heapq.heappop(offers)
                tokens -= largest
                next_sibling = [(*path[:-1], path[-1] + 1)] if path else []
                for offer in ((*path, 0), *next_sibling):
                    if len(offer) <= limit and offer[-1] < np.shape(p)[-1]:
                        heapq.heappush(offers, (-node_value(offer, rows), offer))
            result[limit, n] = tokens
    return result


def same(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=0)
