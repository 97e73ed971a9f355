"""How fast the trees of a box of level widths can be at most, and where to split the box.

Two bounds, both proven, and the smaller counts, for every depth D and number of nodes n:

- Widths: the most tokens of any tree no wider than the box allows, paid as if every level were as narrow as it allows.
- Price (Dinkelbach, 1967): under every level's cost lies a line, `base_s + slope_s * width`, so a slope is a price on
  each internal node.  Let mu be the fastest tree's tokens per second.  The most that a tree's tokens exceed
  mu * (its seconds under the lines) is bounded by `treeopt.planner.prices`.  No more than 0: no tree of n nodes and
  depth D is faster.  Otherwise none exceeds mu by more than that excess over its least seconds.
"""

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.planner.costs import StepCosts
from treeopt.planner.prices import ListedNodes, Priced, priced
from treeopt.solver import Solution
from treeopt.trees import TokenTree, chain


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Trees with at least `least` and at most `most` internal nodes at each depth that they draft from."""

    least: Int64
    most: Int64

    def lines(self, costs: StepCosts) -> tuple[Float64, Float64]:
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


def bounded(box: Box, solution: Solution, costs: StepCosts, nodes: ListedNodes, speedup: float) -> BoxBound:
    """Return a box with the bound on its trees' speedup.

    Args:
        box: at least and at most so many internal nodes at each depth.
        solution: trees of most tokens within the box, or within more.
        costs: of one condition, without draws.
        nodes: the nodes with the largest upper bounds, without width limits.
        speedup: of the fastest tree found; bounds below it are not made any tighter.
    """
    seconds = _least_seconds(box, solution, costs)
    by_width = solution.expected_tokens[1:, 2:] / seconds * costs.verify_s[1]
    shallowest = int(np.flatnonzero(box.least > 1).max(initial=-1)) + 1  # a level that must be wide must be there
    by_width[: max(0, shallowest - 1)] = 0.0
    found = BoxBound(box, solution, speedup, chain(0), priced=False)
    most = by_width.max(axis=1, initial=0.0)
    for row in np.argsort(-most, kind="stable").tolist():
        if most[row] <= found.speedup:
            break  # neither can the rows behind it be faster
        of_depth = _priced(box, nodes, costs, row + 1, seconds[row], by_width[row], speedup)
        place = int(of_depth.bounds.argmax())
        if of_depth.bounds[place] > found.speedup:
            by_price = bool(of_depth.bounds[place] < by_width[row, place])
            tree = TokenTree.ordered(of_depth.parents) if by_price else solution.tree(place + 2, row + 1)
            found = BoxBound(box, solution, float(of_depth.bounds[place]), tree, priced=by_price)
    return found


def _least_seconds(box: Box, solution: Solution, costs: StepCosts) -> Float64:
    """Return (D, N - 1): the least that a tree in the box of depth 1 … D and 2 … N nodes costs."""
    draft_s = np.cumsum(costs.draft_s[box.least])
    return np.asarray(draft_s[:, None] + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s)


def _priced(
    box: Box,
    nodes: ListedNodes,
    costs: StepCosts,
    depth: int,
    least_s: Float64,
    by_width: Float64,
    speedup: float,
) -> Priced:
    """Return the bounds for one depth and the sizes whose trees are not known to be slow by their widths."""
    last = int(np.flatnonzero(by_width > speedup)[-1]) + 1
    rate = speedup / costs.verify_s[1]  # tokens per second
    base_s, slope_s = box.lines(costs)
    seconds = base_s[:depth].sum() + costs.verify_s[2 : last + 2] + costs.overhead_s

    def speed_of(excess: Float64) -> Float64:
        by_price = speedup + np.maximum(0.0, excess) / least_s[:last] * costs.verify_s[1]
        return np.asarray(np.minimum(by_width[:last], by_price))

    return priced(
        nodes.to_depth(depth),
        rate * slope_s,
        np.where(by_width[:last] > speedup, rate * seconds, np.inf),
        speed_of,
        fast_enough=speedup,
        about=int(by_width.argmax()) + 2,
    )
