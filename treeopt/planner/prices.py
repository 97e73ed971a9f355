"""Upper bounds on the speed of trees of one depth, with a price for every internal node.

The value of a tree is the sum of its nodes' reach, less a price in tokens for each internal node. Let W(n) be the largest
value of a tree of n nodes, and worth[n] its remaining seconds in tokens: a tree is fast if its value exceeds that.
Two bounds on W, the second where the first leaves something open:

- A price on every node too (Everett, 1963): W(n) <= L(price) + price * n, where L is the value of the best tree of any
  size after paying it. That takes O(M), holds for all n at once, and is W itself where that tree has n nodes.
  The next price is the slope between two sizes where the lines touch W (Eisner and Severance, 1976).
- The knapsack over the nodes (`treeopt.solver.explicit`): W for every n, in O(M N). It omits nodes that are part of no open
  tree: at some price they lose more than any open tree may.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Bool, Float64, Int32
from treeopt.solver.best_first import TopNodes, parents_of
from treeopt.solver.explicit import ExplicitTrees, Preorder, best_of_any_size, best_values, sort_preorder

KNAPSACK_NODES = 8
"""Nodes that the knapsack chooses among, as a multiple of the budget."""
MAX_CELLS = 2_000_000
"""Nodes times budget beyond which the knapsack is left out: 16 MB."""
ROUNDS = 30
"""Prices on every node that are tried at most; a handful is the rule."""
CHEAPER = 4
"""By what a price is divided while too few nodes are worth it."""


@dataclass(frozen=True, slots=True, eq=False)
class DepthNodes:
    """The nodes listed for one limit of depth, in preorder."""

    parent: Int32
    """int32 (M,): of every node of the table."""
    preorder: Preorder
    reach: Float64
    bound: Float64
    """float64 (positions,): upper bounds, from `TopNodes`."""
    internal: Int32
    """int32 (positions,): at a first child the depth of its parent, which becomes internal with it; at others -1."""
    bound_outside: float
    """Upper bound on the reach of every node that is not listed."""

    def values(self, price: Float64) -> Float64:
        """Return float64 (positions,): the reach of each node, less the price (D,) if it makes its parent internal."""
        return self.reach - np.where(self.internal >= 0, price[self.internal], 0.0)

    def nth_bound(self, n: int) -> float:
        """Return the n-th largest upper bound, n from 1; with fewer nodes, the bound of those that are not listed."""
        if n > len(self.bound):
            return self.bound_outside
        return float(-np.partition(-self.bound, n - 1)[n - 1])

    def exceeding(self, price: float) -> Bool:
        """Return bool (positions,): nodes whose upper bound exceeds a price, and the root; no tree gains by any other."""
        kept = self.bound > price
        kept[0] = True
        return kept


@dataclass(frozen=True, eq=False)
class ListedNodes:
    """The top nodes of a table, listed by depth limit."""

    nodes: TopNodes

    def to_depth(self, depth: int) -> DepthNodes:
        """Return the nodes that are listed for one limit of depth."""
        if depth not in self._depths:
            nodes, listed = self.nodes, np.zeros(len(self.nodes.parent), np.bool_)
            listed[nodes.order[depth][nodes.order[depth] >= 0]] = True
            preorder = self._preorder.select(listed[self._preorder.node])
            node = preorder.node
            internal = np.where((nodes.rank[node] == 0) & (node > 0), nodes.depth[node] - 1, -1).astype(np.int32)
            self._depths[depth] = DepthNodes(
                nodes.parent,
                preorder,
                nodes.reach[node],
                nodes.bound[node],
                internal,
                float(nodes.bound_outside[depth]),
            )
        return self._depths[depth]

    @cached_property
    def _preorder(self) -> Preorder:
        return sort_preorder(self.nodes.parent)

    @cached_property
    def _depths(self) -> dict[int, DepthNodes]:
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A bound on the speed of trees of 2, 3, … nodes, and the tree that the largest bound was reckoned for."""

    bounds: Float64
    parents: list[int]


def priced(
    at: DepthNodes,
    price: Float64,
    worth: Float64,
    speed_of: Callable[[Float64], Float64],
    fast_enough: float,
    about: int,
) -> Priced:
    """Return upper bounds on the speed of trees, by how much their values can exceed `worth`.

    Args:
        at: the nodes of one limit of depth.
        price: (D,), tokens, of an internal node at each depth.
        worth: (N - 1,), the value that a tree of 2, 3, … N nodes needs; infinite for sizes that are excluded.
        speed_of: from the excess over that, (N - 1,), to the bounds.
        fast_enough: bounds that are no larger need not be made tighter.
        about: an estimate of the size that has the largest bound.
    """
    lines, node_price = _Lines(at, at.values(price), worth), at.nth_bound(about)
    for _ in range(ROUNDS):
        new = lines.add(node_price)
        bounds = speed_of(lines.most - worth)
        asked = int(bounds.argmax()) + 2
        if bounds[asked - 2] <= fast_enough or asked in lines.touched:
            return Priced(bounds, lines.parents(asked))
        fewer, more = lines.around(asked)
        if more and new:
            node_price = max(at.bound_outside, (lines.touched[more][0] - lines.touched[fewer][0]) / (more - fewer))
        elif not more and node_price > at.bound_outside:
            node_price = max(at.bound_outside, node_price / CHEAPER)
        else:
            break  # W is not concave here, or there are not so many nodes: no price tells more
    return _by_knapsack(lines, bounds, speed_of)


class _Lines:
    """Upper bounds on W from prices on every node: lines above it, and where they touch it."""

    def __init__(self, at: DepthNodes, values: Float64, worth: Float64) -> None:
        self.at, self.values, self.worth = at, values, worth
        self.most = np.full(len(worth), np.inf)
        """The lowest line at every size."""
        self.touched = {1: (float(values[0]), np.zeros(1, np.int32))}
        """By size: W, and the nodes of its tree."""
        self.pruned_bound = 0.0
        """No open tree contains a node whose upper bound is at most this: it would be worth more without that node."""

    def add(self, price: float) -> bool:
        """Add the line of a price on every node; return whether it touches W at another size than those before."""
        kept = self.at.exceeding(price)
        preorder = self.at.preorder.select(kept)
        total, chosen = best_of_any_size((self.values[kept] - price).tolist(), preorder.skip.tolist())
        line = total + price * np.arange(2, len(self.worth) + 2)
        self.most = np.minimum(self.most, line)
        self.pruned_bound = max(self.pruned_bound, price - float((line - self.worth).max()))
        new = len(chosen) not in self.touched
        self.touched[len(chosen)] = total + price * len(chosen), preorder.node[chosen]
        return new

    def around(self, size: int) -> tuple[int, int]:
        """Return the sizes next to this one at which W is touched, 0 where there is no larger."""
        return max(n for n in self.touched if n <= size), min((n for n in self.touched if n > size), default=0)

    def parents(self, size: int) -> list[int]:
        """Return the parents of the best known tree of `size` nodes, or of the next smaller size."""
        return parents_of(self.at.parent, self.touched[self.around(size)[0]][1])


def _by_knapsack(lines: _Lines, bounds: Float64, speed_of: Callable[[Float64], Float64]) -> Priced:
    """Return the bounds, tightened by the knapsack unless it is too large."""
    at, worth, asked = lines.at, lines.worth, int(bounds.argmax()) + 2
    sizes = np.arange(len(worth) + 2)
    enough = at.nth_bound(KNAPSACK_NODES * int(sizes[-1]))  # bounds the reach of all omitted nodes
    kept = at.exceeding(max(lines.pruned_bound, enough))
    if np.count_nonzero(kept) * len(worth) > MAX_CELLS:
        return Priced(bounds, lines.parents(asked))
    preorder = at.preorder.select(kept)
    trees = ExplicitTrees(at.parent, preorder, best_values(lines.values[kept], preorder.skip, int(sizes[-1])))
    most = np.maximum.accumulate(trees.values - sizes * enough) + sizes * enough
    bounds = np.minimum(bounds, speed_of(most[2:] - worth))
    asked = int(bounds.argmax()) + 2
    return Priced(bounds, trees.parents(asked) if np.isfinite(trees.values[asked]) else lines.parents(asked))
