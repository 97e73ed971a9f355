"""The fastest tree if wider levels take longer to draft.

    speedup(T) = tokens(T) * plain_s / (sum of draft_s[width of each level] + verify_s[nodes] + overhead_s)

The tree with the most tokens for its nodes and depth is often too wide to be the fastest.  So the search runs over
limits on the width of each level.  `_Search._grow` returns the trees with the most tokens within such limits:

1. Sweep: try the same limit at all levels, for each depth.
2. Climb: change the limit of one level, add a level or drop one, as long as that helps.
3. Exchange: add, remove or move leaves, as long as that helps.

`_grow` is exact if the rows of the acceptance table are non-increasing and do not depend on the parent's rank.  For other
tables it follows pooled rows, in which each increasing run is replaced by its mean, and step 3 corrects the leaves.

No step proves that the tree is the fastest.  `speed_bound.upper_bound` limits how much faster any other tree can be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64, Int64, Integers
from treeopt.planner.costs import StepCosts
from treeopt.planner.speed_bound import CLOSED, bound_by_width, upper_bound
from treeopt.solver import Solution
from treeopt.trees import TokenTree

SWEPT_LIMITS = (1, 2, 4, 8, 16, 32)
GROWTH = 2
"""Limit on the nodes of the trees in the climb, as a multiple of the larger of the trees that it starts from."""
MAX_LEAVES = 16
"""Most leaves that one exchange adds to a node or removes from it."""
MAX_EXCHANGES = 4
"""Most exchanges, the best by estimate, that are evaluated for one tree."""
ROUNDING = 1e-12
"""Smallest relative gain that counts."""

Limits = tuple[int, ...]
"""Most internal nodes at depth 0, 1, …, one number per level below the root."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Fastest(ShortRepr):
    """The fastest tree found, and a bound on all others."""

    tree: TokenTree
    speedup: float
    """Tokens per second relative to plain decoding."""
    bound: float
    """No tree within the budget and depth has a larger speedup; equal to `speedup` if that is proven to be the largest."""

    @property
    def loss(self) -> float:
        """Largest possible fraction of the best speed that is lost; 0 if the tree is proven to be the fastest."""
        return 1 - self.speedup / self.bound


def fastest_tree(
    solution: Solution,
    costs: StepCosts,
    *,
    level_widths: int | Sequence[int] | None = None,
    speedups: Float64 | None = None,
) -> Fastest:
    """Return the fastest tree found within the budget and depth of a solution; it may be the root alone.

    Args:
        solution: solved without limits other than `level_widths`.
        costs: of one operating point, without draws.
        level_widths: most nodes at each depth, as for `solve`.
        speedups: `solution_speedups(solution, costs)`, if the caller has computed them.
    """
    search = _Search(
        solution, costs, level_widths, solution_speedups(solution, costs) if speedups is None else speedups
    )
    trees = list(dict.fromkeys([search.best, *(search.climb(limits) for limits in search.starts())]))
    if level_widths is None:
        trees = [search.exchange(tree) for tree in trees]
    tree = max(trees, key=search.speedup)
    speedup = search.speedup(tree)
    return Fastest(tree=tree, speedup=speedup, bound=upper_bound(solution, costs, speedup))


def solution_speedups(solution: Solution, costs: StepCosts) -> Float64:
    """Return float64 (max_depth + 1, max_nodes + 1): the speedup of each tree of a solution; column 0 is 0.

    A tree with a level wider than the measured ones counts as 0.
    """
    nodes = np.maximum(np.arange(solution.max_nodes + 1), 1)
    step_s = [_step_s(costs, nodes, solution.draft_widths(depth)) for depth in range(solution.max_depth + 1)]
    return costs.speedup(solution.expected_tokens, np.stack(step_s)[solution.tree_depth, solution.tree_nodes])


def _step_s(costs: StepCosts, nodes: Integers, widths: Integers) -> Float64:
    """Return (trees,): seconds of a step; infinite for a tree with a level wider than the measured ones."""
    levels = np.count_nonzero(widths, axis=-1)
    measured = (widths <= costs.max_draft_width).all(axis=-1) & (levels <= costs.max_levels)
    return np.where(measured, costs.step_s(nodes, np.where(measured[..., None], widths, 0)), np.inf)


class _LimitedTree(NamedTuple):
    """The fastest tree within some limits."""

    speedup: float
    limits: Limits
    nodes: int
    widths: Limits
    """Internal nodes at each depth, at most the limits."""


_speedup = attrgetter("speedup")


class _Nodes(NamedTuple):
    """Nodes level by level; the n nodes with the largest keys form the tree of n nodes."""

    parent: Int64
    rank: Int64
    depth: Int64
    reach: Float64
    """The probability that a step accepts each node."""
    key: Float64
    """Reach by pooled rows, at most the parent's key."""

    def top(self, nodes: int) -> Int64:
        """Return the nodes with the largest keys, in decreasing order and each parent before its children."""
        return np.argsort(-self.key, kind="stable")[:nodes]


class _Search:
    """The search for one acceptance table at one operating point."""

    def __init__(
        self, solution: Solution, costs: StepCosts, level_widths: int | Sequence[int] | None, speedups: Float64
    ) -> None:
        self._table, self._costs, self._solution = solution.table, costs, solution
        self._rows = solution.table.rows(solution.max_depth)
        self._pooled_rows = _pool_rows(self._rows)
        widest = np.resize(solution.max_nodes if level_widths is None else level_widths, solution.max_depth)
        self._level_widths = np.minimum(widest, solution.max_nodes).astype(np.int32)
        root = _Nodes(np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1), np.ones(1))
        self._nodes: dict[Limits, _Nodes] = {(): root}
        self._trees: dict[Limits, _LimitedTree] = {}
        depth, nodes = np.unravel_index(speedups.argmax(), speedups.shape)
        self.best = solution.tree(int(nodes), int(depth))
        """The fastest of the solution's trees."""
        # sizes and depths whose bound is below this tree need not be tried
        depths, sizes = np.nonzero(bound_by_width(solution, costs) > self.speedup(self.best) * (1 + CLOSED))
        self._max_depth, self._max_nodes = int(depths.max(initial=-1)) + 1, int(sizes.max(initial=-1)) + 2
        self._depths = np.unique(depths + 1).tolist()

    def speedup(self, tree: TokenTree) -> float:
        tokens = np.array([self._table.expected_tokens(tree)])
        return float(self._costs.speedup(tokens, self._costs.tree_s(tree)[None])[0])

    def starts(self) -> Iterator[Limits]:
        """Yield the widths of the solution's fastest tree, and those of the fastest tree of the sweep."""
        if self._max_depth == 0:
            return
        sweep = [(1, *[limit] * (depth - 1)) for limit in SWEPT_LIMITS for depth in self._depths]
        fastest = max(map(self._within, sweep), key=_speedup)
        self._max_nodes = min(self._max_nodes, GROWTH * max(fastest.nodes, self.best.nodes))
        if self.best.nodes > 1:
            yield tuple(self.best.draft_widths.tolist())
        yield fastest.widths

    def climb(self, limits: Limits) -> TokenTree:
        """Return the local optimum of changing one limit at a time."""
        best = self._within(limits)
        improved = True
        while improved:
            previous = best.speedup
            depth = 1  # the root is one node
            while depth < len(best.widths):
                neighbours = map(self._within, _neighbours(best.widths, depth))
                best = max([best, *neighbours], key=_speedup)
                depth += 1
            lengths = [best.widths[:-1], (*best.widths[:-1], 1), (*best.widths, 1), (*best.widths, *best.widths[-1:])]
            allowed = [widths for widths in lengths if 0 < len(widths) <= self._max_depth]
            best = max([best, *map(self._within, allowed)], key=_speedup)
            improved = best.speedup > previous * (1 + ROUNDING)
        return self.tree(best)

    def tree(self, limited: _LimitedTree) -> TokenTree:
        nodes = self._grow(limited.limits)
        chosen = np.sort(nodes.top(limited.nodes))
        parents = np.searchsorted(chosen, nodes.parent[chosen])
        return TokenTree.ordered([-1, *parents[1:].tolist()])

    def _within(self, limits: Limits) -> _LimitedTree:
        if limits not in self._trees:
            self._trees[limits] = self._fastest_of(self._grow(limits), limits)
        return self._trees[limits]

    def _grow(self, limits: Limits) -> _Nodes:
        """Return the nodes of the trees with the most tokens within some limits, each level grown from the one above."""
        if limits in self._nodes:
            return self._nodes[limits]
        above, depth = self._grow(limits[:-1]), len(limits)
        start = int(np.searchsorted(above.depth, depth - 1))
        parents = start + np.sort(np.argsort(-above.reach[start:], kind="stable")[: limits[-1]])
        parent_ranks = np.minimum(above.rank[parents], self._table.parent_ranks - 1)
        keys = np.minimum(
            above.key[parents, None], above.reach[parents, None] * self._pooled_rows[depth - 1, parent_ranks]
        )
        full = len(above.key) >= self._max_nodes
        least = np.partition(above.key, -self._max_nodes)[-self._max_nodes] if full else 0.0
        row, rank = np.nonzero(keys > least)
        top = np.argsort(-keys[row, rank], kind="stable")[: min(self._level_widths[depth - 1], self._max_nodes)]
        row, rank = row[top], rank[top]
        nodes = _Nodes(
            parent=np.append(above.parent, parents[row]),
            rank=np.append(above.rank, rank),
            depth=np.append(above.depth, np.full(len(row), depth)),
            reach=np.append(above.reach, above.reach[parents[row]] * self._rows[depth - 1, parent_ranks[row], rank]),
            key=np.append(above.key, keys[row, rank]),
        )
        self._nodes[limits] = nodes
        return nodes

    def _fastest_of(self, nodes: _Nodes, limits: Limits) -> _LimitedTree:
        """Return the fastest of the trees of 1, 2, … of the nodes."""
        chosen = nodes.top(self._max_nodes)
        (internal,) = np.nonzero((nodes.rank[chosen] == 0) & (chosen > 0))  # a first child makes its parent internal
        widths = np.zeros((len(chosen), len(limits)), np.int64)
        widths[internal, nodes.depth[chosen[internal]] - 1] = 1
        widths = np.cumsum(widths, axis=0)
        step_s = _step_s(self._costs, np.arange(1, len(chosen) + 1), widths)
        speedups = self._costs.speedup(np.cumsum(nodes.reach[chosen]), step_s)
        index = int(speedups.argmax())
        levels = widths[index]
        return _LimitedTree(float(speedups[index]), limits, index + 1, tuple(levels[levels > 0].tolist()))

    def exchange(self, tree: TokenTree) -> TokenTree:
        """Return the local optimum of adding, removing and moving leaves."""
        while self._solution.max_depth > 0:
            fastest = max(self._exchanges(tree), key=self.speedup, default=tree)
            if self.speedup(fastest) <= self.speedup(tree) * (1 + ROUNDING):
                break
            tree = fastest
        return tree

    def _exchanges(self, tree: TokenTree) -> Iterator[TokenTree]:
        """Yield the trees with the best estimates in which one node has more leaves, another one fewer, or both."""
        verify_s, rate = self._costs.verify_s, self.speedup(tree) / float(self._costs.plain_s[0])
        more, fewer = np.arange(MAX_LEAVES + 1), -np.arange(MAX_LEAVES + 1)
        added, removed = self._gains(tree, more, rate), self._gains(tree, fewer, rate)
        nodes = tree.nodes + more[:, None] + fewer
        allowed = (nodes >= 1) & (nodes <= self._solution.max_nodes)
        nodes = np.where(allowed, nodes, tree.nodes)
        gain = added.max(axis=0)[:, None] + removed.max(axis=0) - rate * (verify_s[nodes] - verify_s[tree.nodes])
        gain = np.where(allowed, gain, -np.inf)
        for index in np.argsort(-gain, axis=None)[:MAX_EXCHANGES]:
            plus, minus = np.unravel_index(index, gain.shape)
            grown, shrunk = int(added[:, plus].argmax()), int(removed[:, minus].argmax())
            if gain[plus, minus] > 0 and (minus == 0 or tree.parents[grown] != shrunk):
                yield _move_leaves(tree, grown, int(plus), shrunk, int(minus))

    def _gains(self, tree: TokenTree, changes: Int64, rate: float) -> Float64:
        """Return (nodes, changes): the gain in tokens by more or fewer children, minus the cost of a wider level.

        Minus infinity if a node cannot have as many children, or if a child to remove has children of its own.
        """
        counts, max_depth, max_width = tree.child_counts, self._solution.max_depth, self._costs.max_draft_width
        rows = self._rows[np.minimum(tree.depth, max_depth - 1), np.minimum(tree.rank, self._table.parent_ranks - 1)]
        tokens = (
            np.append(np.zeros((tree.nodes, 1)), np.cumsum(rows, axis=1), axis=1) * self._table.reach(tree)[:, None]
        )
        most = np.where(tree.depth < max_depth, self._table.branching, 0)
        least = np.zeros(tree.nodes, np.int64)  # children up to the last that is internal
        inner = np.flatnonzero(counts[1:]) + 1
        np.maximum.at(least, tree.parents[inner], tree.rank[inner] + 1)
        after = counts[:, None] + changes
        widths = np.append(tree.draft_widths, 0)[tree.depth][:, None]
        new_widths = widths + (after > 0) - (counts > 0)[:, None]
        allowed = (after >= least[:, None]) & (after <= most[:, None]) & (new_widths <= max_width)
        after, new_widths = np.where(allowed, after, 0), np.where(allowed, new_widths, 0)
        gain = np.take_along_axis(tokens, after, axis=1) - np.take_along_axis(tokens, counts[:, None], axis=1)
        more_s = self._costs.level_s[new_widths] - self._costs.level_s[widths]
        return np.where(allowed, gain - rate * more_s, -np.inf)


def _neighbours(widths: Limits, depth: int) -> list[Limits]:
    """Return limits with one narrower or wider level."""
    width = widths[depth]
    near = {1, width // 2, *range(width - 3, width + 4), 3 * width // 2, 2 * width}
    return [(*widths[:depth], other, *widths[depth + 1 :]) for other in sorted(near - {width}) if other >= 1]


def _pool_rows(rows: Float64) -> Float64:
    """Return the closest non-increasing rows: each increasing run is replaced by its mean (Barlow et al., 1972)."""
    if np.all(rows[..., 1:] <= rows[..., :-1]):
        return rows
    from scipy.optimize import isotonic_regression

    return np.apply_along_axis(lambda row: isotonic_regression(row, increasing=False).x, -1, rows)


def _move_leaves(tree: TokenTree, grown: int, more: int, shrunk: int, fewer: int) -> TokenTree:
    """Return a tree in which one node has more children, and another one has lost its last children, all leaves."""
    remaining = (tree.parents != shrunk) | (tree.rank < tree.child_counts[shrunk] - fewer)
    indices = np.cumsum(remaining) - 1
    parents = indices[tree.parents[remaining]]
    parents[0] = -1
    return TokenTree.ordered(np.append(parents, np.full(more, indices[grown])))
