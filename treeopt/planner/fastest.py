"""The fastest tree under costs that grow with the width of every level: branch and bound over boxes of widths.

A box whose bound (`treeopt.planner.bound`) does not beat the fastest tree found is dropped.  Another is split at the
depth where its best tree costs most above the bound: that tree is too wide for one half, and paid more fully in the
other.  No box left: the tree is the optimum.  Stopped before: the largest bound left says by how much, at most, the
tree is beaten.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.planner.bound import Box, BoxBound, bounded
from treeopt.planner.costs import StepCosts
from treeopt.planner.prices import ListedNodes
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import BEST_FIRST, Solution, solve
from treeopt.solver.best_first import top_nodes
from treeopt.trees import TokenTree

MAX_BOXES = 200
MAX_CELLS = 8_000_000
"""Budgets times depths of all boxes together, after which to stop too: about a second."""
NODES_PRICED = 4
"""Nodes with prices, as a multiple of the budget: the smallest upper bound among them bounds all others."""
CLOSED = 1e-9
"""Bounds that lie above the fastest by no more than this share are taken to be equal: rounding."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Fastest(ShortRepr):
    """The fastest tree found, and what is known of all others."""

    tree: TokenTree
    speedup: float
    """Tokens per second over those of plain decoding."""
    bound: float
    """No tree of the budget and depth has a larger speedup; equal to `speedup` when the tree is the optimum."""
    boxes: int
    """Boxes of level widths that were looked into."""

    @property
    def loss(self) -> float:
        """Share of the best possible speed that may be missing, 0 when the tree is the optimum."""
        return 1 - self.speedup / self.bound


def fastest_tree(
    solution: Solution,
    costs: StepCosts,
    *,
    level_widths: int | Sequence[int] | None = None,
    max_boxes: int = MAX_BOXES,
) -> Fastest:
    """Return the fastest tree of at most so many nodes and levels as were solved, plain decoding included.

    Where rows rise, or depend on the parent's rank, boxes are bounded by prices alone, and more may be left open.

    Args:
        solution: the trees of most tokens, under no limit of widths but `level_widths`.
        costs: of one condition, without draws.
        level_widths: most nodes at each depth, as for `solve`.
        max_boxes: boxes after which to stop; large problems stop earlier.
    """
    nodes, speedups = listed_nodes(solution), speeds(solution, costs)
    return search_boxes(solution, costs, nodes, speedups, level_widths=level_widths, max_boxes=max_boxes)


def search_boxes(
    solution: Solution,
    costs: StepCosts,
    nodes: ListedNodes,
    speedups: Float64,
    *,
    level_widths: int | Sequence[int] | None = None,
    max_boxes: int = MAX_BOXES,
) -> Fastest:
    """Return the same with what other conditions and purposes have in common.

    Args:
        solution: as for `fastest_tree`, and so are the others.
        costs: of one condition.
        nodes: `listed_nodes` of the solution.
        speedups: `speeds` of the solution.
        level_widths: most nodes at each depth.
        max_boxes: boxes after which to stop.
    """
    max_boxes = min(max_boxes, MAX_CELLS // solution.expected_tokens.size)
    search = _Search(solution, costs, level_widths, nodes, speedups)
    everything = _everything(solution, costs, search.speedup)
    first = search.bound(everything, search.within(everything))
    left, looked, order = [(-first.speedup, 0, first)], 1, count(1)
    closed = search.speedup
    while left and -left[0][0] > search.speedup * (1 + CLOSED) and looked < max_boxes:
        _, _, box = heapq.heappop(left)
        halves = box.halves(costs)
        if not halves:
            closed = max(closed, box.speedup)  # it cannot be split, so its bound stands
        for half in halves:
            found = search.bound(half, box.solution if half.most is box.box.most else search.within(half))
            found = replace(found, speedup=min(found.speedup, box.speedup))
            heapq.heappush(left, (-found.speedup, next(order), found))
            looked += 1
    bound = max(closed, search.speedup, *(box.speedup for _, _, box in left))
    if bound <= search.speedup * (1 + CLOSED):
        bound = search.speedup
    return Fastest(tree=search.tree, speedup=search.speedup, bound=bound, boxes=looked)


def listed_nodes(solution: Solution) -> ListedNodes:
    """Return the nodes of a solution's table that prices are put on."""
    return ListedNodes(top_nodes(solution.table.rows(solution.max_depth), NODES_PRICED * solution.max_nodes))


def speeds(solution: Solution, costs: StepCosts) -> Float64:
    """Return float64 (max_depth + 1, max_nodes + 1): speedup of every tree of a solution; column 0 is 0.

    A tree with a level wider than was measured counts as 0.
    """
    step_s = np.stack([_step_s(solution, costs, depth) for depth in range(solution.max_depth + 1)])
    step_s = step_s[solution.tree_depth, solution.tree_nodes]
    return costs.speedup(solution.expected_tokens, step_s)


def _step_s(solution: Solution, costs: StepCosts, depth: int) -> Float64:
    """Return (N + 1,): seconds of a step with each tree of one depth limit, infinite where a level was not measured."""
    widths = solution.draft_widths_of(depth)
    measured = (widths <= costs.max_draft_width).all(axis=-1)
    nodes = np.maximum(np.arange(solution.max_nodes + 1), 1)
    return np.where(measured, costs.step_s(nodes, np.minimum(widths, costs.max_draft_width)), np.inf)


class _Search:
    """The fastest tree found so far, and how boxes are bounded."""

    def __init__(
        self,
        solution: Solution,
        costs: StepCosts,
        level_widths: int | Sequence[int] | None,
        nodes: ListedNodes,
        speedups: Float64,
    ) -> None:
        self._table, self._costs, self._level_widths, self._nodes = solution.table, costs, level_widths, nodes
        self._sizes = solution.max_nodes, solution.max_depth
        self._solution = solution
        # the shallowest and then the smallest of the fastest
        depth, budget = np.unravel_index(speedups.argmax(), speedups.shape)
        self.tree = solution.tree(int(budget), int(depth))
        self.speedup = _speedup(self.tree, self._table, costs)

    def within(self, box: Box) -> Solution:
        """Return the trees of most tokens that are no wider than the box allows, or of all where that takes long."""
        if self._solution.certificate.method != BEST_FIRST or self._table.parent_ranks > 1:
            return self._solution
        most = box.most.tolist()
        return solve(self._table, *self._sizes, level_widths=self._level_widths, draft_widths=most)

    def bound(self, box: Box, solution: Solution) -> BoxBound:
        """Return the box with its bound, after trying its tree."""
        while True:
            found = bounded(box, solution, self._costs, self._nodes, self.speedup)
            if not self._allowed(found.tree):
                return found
            speedup = _speedup(found.tree, self._table, self._costs)
            if speedup <= self.speedup * (1 + CLOSED):
                return found
            self.tree, self.speedup = found.tree, speedup  # a faster tree makes the bound tighter

    def _allowed(self, tree: TokenTree) -> bool:
        if tree.max_depth and tree.draft_widths.max() > self._costs.max_draft_width:
            return False
        return self._level_widths is None or bool(
            np.all(tree.level_widths[1:] <= np.resize(self._level_widths, self._sizes[1])[: tree.max_depth])
        )


def _everything(solution: Solution, costs: StepCosts, speedup: float) -> Box:
    """Return the box of all trees that can be faster: no level so wide that its draft alone would lose."""
    widths = np.arange(1, min(costs.max_draft_width, solution.max_nodes) + 1)
    levels = np.arange(1, solution.max_depth + 1)
    drafted_s = levels[:, None] * costs.draft_s[1] + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s
    affordable_s = (solution.expected_tokens[1:, 2:] * costs.verify_s[1] / speedup - drafted_s).max(initial=0.0)
    widest = widths[costs.draft_s[widths] - costs.draft_s[1] <= affordable_s * (1 + CLOSED)].max(initial=1)
    most = np.full(solution.max_depth, widest, np.int64)
    most[:1] = 1  # the root is one node
    return Box(np.ones(solution.max_depth, np.int64), most)


def _speedup(tree: TokenTree, table: AcceptanceTable, costs: StepCosts) -> float:
    return float(costs.speedup(np.array([table.expected_tokens(tree)]), costs.tree_s(tree)[None])[0])
