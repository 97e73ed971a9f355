"""How fast the trees of a box of level widths can be at most, and where to split the box.

Two bounds, both proven, and the smaller counts, for every depth D and number of nodes n:

- Widths: the most tokens of any tree no wider than the box allows, paid as if every level were as narrow as it allows.
- Price (Dinkelbach, 1967): under every level's cost lies a line, `base_s + slope_s * width`, so a slope is a price on
  each internal node.  Let mu be the fastest tree's tokens per second.  The most that a tree's tokens exceed
  mu * (its seconds under the lines) is found exactly by `treeopt.solver.explicit`.  No more than 0: no tree of n nodes
  and depth D is faster.  Otherwise none exceeds mu by more than that excess over its least seconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.planner.costs import StepCosts
from treeopt.solver import Solution
from treeopt.solver.best_first import HeaviestNodes
from treeopt.solver.explicit import ExplicitTrees, solve_explicit
from treeopt.trees import TokenTree, chain

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


MAX_PRICED = 20_000_000
"""Nodes times budget beyond which prices are left out: 160 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Trees with at least `least` and at most `most` internal nodes at each depth that they draft from."""

    least: IntArray
    most: IntArray

    def lines(self, costs: StepCosts) -> tuple[FloatArray, FloatArray]:
        """Return base_s and slope_s (D,) of a line under the cost of each depth, touching it inside the box."""
        # where a box allows one width only, any slope will do: one that makes wider levels dear
        to = np.where(self.most > self.least, self.most, np.minimum(2 * self.most, costs.max_draft_width))
        slope_s = (costs.draft_s[to] - costs.draft_s[self.least]) / np.maximum(1, to - self.least)
        base_s = [
            (costs.draft_s[low : high + 1] - slope * np.arange(low, high + 1)).min()
            for low, high, slope in zip(self.least, self.most, slope_s, strict=True)
        ]
        return np.array(base_s), slope_s

    def split(self, depth: int, width: int) -> list["Box"]:
        """Return the halves with fewer than `width` internal nodes at a depth, and with so many or more."""
        narrower, wider = self.most.copy(), self.least.copy()
        narrower[depth], wider[depth] = width - 1, width
        return [Box(self.least, narrower), Box(wider, self.most)]


@dataclass(frozen=True, slots=True, eq=False)
class BoxBound:
    """A box, a bound on the speedup of its trees, and the tree that the bound was reckoned for."""

    box: Box
    solution: Solution
    speedup: float
    tree: TokenTree
    priced: bool
    """Whether the bound comes from prices, or else from widths."""

    def halves(self, costs: StepCosts) -> list[Box]:
        """Return the box split at the depth where its tree costs most above the line; none if no depth is left."""
        widths = np.zeros(len(self.box.least), np.int64)
        widths[: self.tree.max_depth] = self.tree.draft_widths
        base_s, slope_s = self.box.lines(costs) if self.priced else (costs.draft_s[self.box.least], 0.0)
        inside = np.clip(widths, self.box.least, self.box.most)
        open_ = self.box.most > self.box.least
        above_s = np.where(open_ & (widths > 0), costs.draft_s[inside] - base_s - slope_s * inside, 0.0)
        if above_s.max(initial=0.0) > 0:
            depth = int(above_s.argmax())
            return self.box.split(depth, max(int(inside[depth]), int(self.box.least[depth]) + 1))
        rise_s = np.where(open_, costs.draft_s[self.box.most] - costs.draft_s[self.box.least], 0.0)
        if rise_s.max(initial=0.0) <= 0:
            return []
        depth = int(rise_s.argmax())
        return self.box.split(depth, int(self.box.least[depth] + self.box.most[depth] + 1) // 2)


def bounded(box: Box, solution: Solution, costs: StepCosts, nodes: HeaviestNodes, speedup: float) -> BoxBound:
    """Return a box with the bound on its trees' speedup.

    Args:
        box: at least and at most so many internal nodes at each depth.
        solution: trees of most tokens within the box, or within more.
        costs: of one condition, without draws.
        nodes: the heaviest nodes, without limits of widths.
        speedup: of the fastest tree found; bounds below it are not made any tighter.
    """
    seconds = _least_seconds(box, solution, costs)
    tokens = solution.expected_tokens[1:, 2:] + solution.certificate.gap_tokens
    bounds = tokens / seconds * costs.verify_s[1]
    shallowest = int(np.flatnonzero(box.least > 1).max(initial=-1)) + 1  # a level that must be wide must be there
    bounds[: max(0, shallowest - 1)] = 0.0
    priced: dict[int, ExplicitTrees] = {}
    by_width = bounds.copy()
    for row in np.flatnonzero((bounds > speedup).any(axis=1)).tolist():
        last = int(np.flatnonzero(bounds[row] > speedup)[-1]) + 2
        if last * nodes.order.shape[1] > MAX_PRICED:
            continue  # the bound by widths stands
        priced[row], excess = _priced(box, nodes, costs, row + 1, last, speedup)
        by_price = speedup + np.maximum(0.0, excess) / seconds[row, : last - 1] * costs.verify_s[1]
        bounds[row, : last - 1] = np.minimum(bounds[row, : last - 1], by_price)
    if bounds.size == 0 or bounds.max() <= speedup:
        return BoxBound(box, solution, speedup, chain(0), priced=False)
    row, place = divmod(int(bounds.argmax()), bounds.shape[1])
    by_price = bounds[row, place] < by_width[row, place] and bool(np.isfinite(priced[row].weights[place + 2]))
    tree = TokenTree.ordered(priced[row].parents(place + 2)) if by_price else solution.tree(place + 2, row + 1)
    return BoxBound(box, solution, float(bounds.max()), tree, priced=by_price)


def _least_seconds(box: Box, solution: Solution, costs: StepCosts) -> FloatArray:
    """Return (D, N - 1): the least that a tree in the box of depth 1 … D and 2 … N nodes costs."""
    draft_s = np.cumsum(costs.draft_s[box.least])
    return np.asarray(draft_s[:, None] + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s)


def _priced(
    box: Box, nodes: HeaviestNodes, costs: StepCosts, depth: int, most_nodes: int, speedup: float
) -> tuple[ExplicitTrees, FloatArray]:
    """Return the best trees under the lines' prices, and the most by which 2 … `most_nodes` nodes' tokens exceed them.

    Nodes that are not listed add no more than the bound on each of them.
    """
    rate = speedup / costs.verify_s[1]  # tokens per second
    base_s, slope_s = box.lines(costs)
    among = nodes.order[depth][nodes.order[depth] >= 0]
    among = np.sort(among)
    parent = np.searchsorted(among, nodes.parent[among]).astype(np.int32)
    parent[0] = -1
    level = nodes.depth[among]
    price = np.where((nodes.rank[among] == 0) & (level > 0), rate * slope_s[np.maximum(level, 1) - 1], 0.0)
    trees = solve_explicit(parent, nodes.reach[among] - price, most_nodes)
    n = np.arange(most_nodes + 1)
    tokens = np.maximum.accumulate(trees.weights - n * nodes.left_out[depth]) + n * nodes.left_out[depth]
    seconds = base_s[:depth].sum() + costs.verify_s[: most_nodes + 1] + costs.overhead_s
    return trees, (tokens - rate * seconds)[2:]
