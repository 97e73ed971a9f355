"""How fast trees of one depth can be at most, when every internal node is paid by a price.

A tree weighs what its nodes are reached, less a price, in tokens, for each internal node.  Let W(n) be the most that a
tree of n nodes weighs, and worth[n] what its remaining seconds are worth in tokens: it is fast where W(n) exceeds that.
Two bounds on W, the second where the first leaves something open:

- A price on every node too (Everett, 1963): W(n) <= L(price) + price * n, where L is what the heaviest tree of any
  size weighs after paying it.  That takes O(M), holds for all n at once, and is W itself where that tree has n nodes.
  The price is looked for where two such lines cross (Eisner and Severance, 1976).
- The knapsack over the nodes (`treeopt.solver.explicit`): W for every n, in O(M N).  A node that at some price loses
  more than all that is open there is part of no open tree, and is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Bool, Float64, Int32
from treeopt.solver.best_first import TopNodes, parents_of
from treeopt.solver.explicit import ExplicitTrees, Preorder, heaviest_of_any_size, most_weight, preorder

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
    """(M,): of every node of the table, by its number."""
    places: Preorder
    reach: Float64
    bound: Float64
    """(places,): upper bounds, from `TopNodes`."""
    internal: Int32
    """(places,): at a first child the depth of its parent, which becomes internal with it; at others -1."""
    bound_outside: float
    """Upper bound on the reach of every node that is not listed."""

    def weight(self, price: Float64) -> Float64:
        """Return (places,): what each node is reached, less the price (D,) of an internal node where it makes one."""
        return self.reach - np.where(self.internal >= 0, price[self.internal], 0.0)

    def nth_bound(self, n: int) -> float:
        """Return the n-th largest upper bound, n from 1; with fewer nodes, the bound of those that are not listed."""
        if n > len(self.bound):
            return self.bound_outside
        return float(-np.partition(-self.bound, n - 1)[n - 1])

    def exceeding(self, price: float) -> Bool:
        """Return bool (places,): nodes whose upper bound exceeds a price, and the root; no tree gains by any other."""
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
            places = self._places.only(listed[self._places.node])
            node = places.node
            internal = np.where((nodes.rank[node] == 0) & (node > 0), nodes.depth[node] - 1, -1).astype(np.int32)
            self._depths[depth] = DepthNodes(
                nodes.parent, places, nodes.reach[node], nodes.bound[node], internal, float(nodes.bound_outside[depth])
            )
        return self._depths[depth]

    @cached_property
    def _places(self) -> Preorder:
        return preorder(self.nodes.parent)

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
    """Return bounds on the speed of trees by what their weight can exceed what it has to be; below it none is told.

    Args:
        at: the nodes of one limit of depth.
        price: (D,), tokens, of an internal node at each depth.
        worth: (N - 1,), what a tree of 2, 3, … N nodes has to weigh; infinite for sizes that are not asked about.
        speed_of: from the excess over that, (N - 1,), to the bounds.
        fast_enough: bounds that are no larger need not be made tighter.
        about: an estimate of the size that has the largest bound.
    """
    lines, node_price = _Lines(at, at.weight(price), worth), at.nth_bound(about)
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
    """What prices on every node have told of W: lines above it, and where they touch it."""

    def __init__(self, at: DepthNodes, weight: Float64, worth: Float64) -> None:
        self.at, self.weight, self.worth = at, weight, worth
        self.most = np.full(len(worth), np.inf)
        """The lowest line at every size."""
        self.touched = {1: (float(weight[0]), np.zeros(1, np.int32))}
        """By size: W, and the nodes of its tree."""
        self.pruned_bound = 0.0
        """No open tree contains a node whose upper bound is at most this: it would be worth more without that node."""

    def add(self, price: float) -> bool:
        """Add the line of a price on every node; return whether it touches W at another size than those before."""
        kept = self.at.exceeding(price)
        places = self.at.places.only(kept)
        total, chosen = heaviest_of_any_size((self.weight[kept] - price).tolist(), places.skip.tolist())
        line = total + price * np.arange(2, len(self.worth) + 2)
        self.most = np.minimum(self.most, line)
        self.pruned_bound = max(self.pruned_bound, price - float((line - self.worth).max()))
        new = len(chosen) not in self.touched
        self.touched[len(chosen)] = total + price * len(chosen), places.node[chosen]
        return new

    def around(self, size: int) -> tuple[int, int]:
        """Return the sizes next to this one at which W is touched, 0 where there is no larger."""
        return max(n for n in self.touched if n <= size), min((n for n in self.touched if n > size), default=0)

    def parents(self, size: int) -> list[int]:
        """Return the parents of the heaviest known tree of so many nodes, or of the next smaller."""
        return parents_of(self.at.parent, self.touched[self.around(size)[0]][1])


def _by_knapsack(lines: _Lines, bounds: Float64, speed_of: Callable[[Float64], Float64]) -> Priced:
    """Return the bounds made tighter by the knapsack, where that is not too large."""
    at, worth, asked = lines.at, lines.worth, int(bounds.argmax()) + 2
    sizes = np.arange(len(worth) + 2)
    enough = at.nth_bound(KNAPSACK_NODES * int(sizes[-1]))  # nodes that are left out are reached no more often
    kept = at.exceeding(max(lines.pruned_bound, enough))
    if np.count_nonzero(kept) * len(worth) > MAX_CELLS:
        return Priced(bounds, lines.parents(asked))
    places = at.places.only(kept)
    trees = ExplicitTrees(at.parent, places, most_weight(lines.weight[kept], places.skip, int(sizes[-1])))
    most = np.maximum.accumulate(trees.weights - sizes * enough) + sizes * enough
    bounds = np.minimum(bounds, speed_of(most[2:] - worth))
    asked = int(bounds.argmax()) + 2
    return Priced(bounds, trees.parents(asked) if np.isfinite(trees.weights[asked]) else lines.parents(asked))
