"""An upper bound on the speedup of any tree, from lower bounds on its costs.

For each depth and number of nodes, the smaller of two bounds:

- By width: a tree has at most the tokens of the solver's tree, and takes at least as long as drafting a chain of its
  depth and verifying its nodes.
- By price: each node has a price, and each internal node outside the chain of first children has another one.  With
  these prices, whether a node has children is decided independently for each, so the best set of nodes follows from the
  leaves up.
"""

import numpy as np

from treeopt.arrays import Float64
from treeopt.planner.costs import StepCosts
from treeopt.solver import Solution
from treeopt.solver.best_first import TopNodes, top_nodes

CLOSED = 1e-9
"""Smaller relative differences between bound and speedup are rounding."""
PRICED = 2
"""Nodes with a price, as a multiple of the largest tree's; the lowest price covers all others."""
PRICES, ROUNDS = 6, 3
"""Node prices that are tried per round, and rounds; each round refines the best price of the one before."""


def bound_by_width(solution: Solution, costs: StepCosts) -> Float64:
    """Return (max_depth, max_nodes - 1): a speedup that no tree of depth 1, 2, … and 2, 3, … nodes exceeds."""
    return np.asarray(solution.expected_tokens[1:, 2:] / _least_s(solution, costs) * costs.plain_s)


def upper_bound(solution: Solution, costs: StepCosts, speedup: float) -> float:
    """Return a speedup that no tree exceeds; `speedup`, that of some tree and at least 1, if none is faster.

    Prices need rank 0 to be the most likely child everywhere, and rows that do not depend on the parent's rank.  Then the
    chain of first children is part of a fastest tree: any other subtree could move there without loss.
    """
    bounds, seconds = bound_by_width(solution, costs), _least_s(solution, costs)
    most, rows = bounds.max(axis=1, initial=0.0), solution.table.rows(solution.max_depth)
    if most.max(initial=0.0) <= speedup * (1 + CLOSED):
        return speedup
    if rows.shape[1] > 1 or np.any(rows > rows[..., :1]):
        return float(most.max())
    bound, rate = speedup, speedup / float(costs.plain_s[0])
    listed = top_nodes(rows, PRICED * solution.max_nodes)
    for row in np.argsort(-most, kind="stable").tolist():
        if most[row] <= bound * (1 + CLOSED):
            break  # neither this depth nor any later one raises the bound
        trees = int(np.flatnonzero(bounds[row] > bound)[-1]) + 1
        tokens, least_s = solution.expected_tokens[row + 1, 2 : trees + 2], seconds[row, :trees]
        excess = np.maximum(0.0, _most_excess(listed, row + 1, costs, rate, tokens, least_s))
        by_price = speedup + excess / least_s * costs.plain_s
        bound = max(bound, float(np.minimum(bounds[row, :trees], by_price).max()))
    return bound if bound > speedup * (1 + CLOSED) else speedup


def _least_s(solution: Solution, costs: StepCosts) -> Float64:
    """Return (max_depth, max_nodes - 1): seconds of a step whose levels are one node wide."""
    drafting_s = costs.chain_s(np.arange(1, solution.max_depth + 1))[:, None]
    return np.asarray(drafting_s + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s)


def _most_excess(
    listed: TopNodes, depth: int, costs: StepCosts, rate: float, tokens: Float64, seconds: Float64
) -> Float64:
    """Return (trees,): an upper bound on the tokens of a tree minus `rate` times its seconds.

    A level with `m` internal nodes outside the chain costs at least `jump_s + slope_s * m` more than a chain's.  Each of
    these nodes pays `slope_s` and a part of `jump_s` that is proportional to its gain (Erlenkotter, 1978).  A price on
    each node relaxes the size: the best value at a price, plus the price of n nodes, bounds the value of all trees of n
    nodes (Everett, 1963).

    Args:
        listed: the nodes with the largest bounds.
        depth: most levels of the trees.
        costs: of one operating point.
        rate: tokens per second.
        tokens: (trees,), for 2, 3, … nodes: the most tokens.
        seconds: (trees,): the least seconds.
    """
    spare_s = float((tokens / rate - seconds).max())  # upper bound on the cost of one level beyond a chain's
    extra_s = costs.level_s[2:] - costs.level_s[1]
    extra_s = extra_s[: np.count_nonzero(extra_s <= spare_s * (1 + CLOSED))]
    slope_s, jump_s = _line_below(extra_s) if len(extra_s) else (np.inf, 0.0)
    bounds = np.sort(listed.bound[listed.depth <= depth])[::-1]
    lowest = float(listed.bound_outside[depth])  # at lower prices, nodes that are not listed would count
    indices = np.unique(np.geomspace(1, PRICED * (len(tokens) + 1), PRICES).astype(int)) - 1
    node_price = rate * (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1)  # of verifying a node, on average
    prices = np.unique(np.maximum(lowest, [0.0, node_price, *bounds[indices[indices < len(bounds)]]]))
    nodes, most = np.arange(2, len(tokens) + 2), np.full(len(tokens), np.inf)
    for _ in range(ROUNDS):
        values = _best_values(listed, depth, prices, rate * slope_s, rate * jump_s) + nodes[:, None] * prices
        most = np.minimum(most, values.min(axis=1))
        loosest = int((most / seconds).argmax())
        best = int(values[loosest].argmin())
        prices = np.linspace(prices[max(0, best - 1)], prices[min(best + 1, len(prices) - 1)], PRICES)
    return np.asarray(most - rate * seconds)


def _best_values(listed: TopNodes, depth: int, prices: Float64, slope: float, jump: float) -> Float64:
    """Return (prices,): the value of the best tree at each node price; all values are in tokens."""
    value = listed.reach[:, None] - prices  # (nodes, prices): each node with the best of its descendants
    for level in range(depth, 0, -1):
        (children,) = np.nonzero(listed.depth == level)
        if len(children) == 0:
            continue
        parents, row = np.unique(listed.parent[children], return_inverse=True)
        gain = np.full((len(parents), int(listed.rank[children].max()) + 1, len(prices)), -np.inf)
        gain[row, listed.rank[children]] = value[children]
        gain = np.maximum(0.0, np.cumsum(gain, axis=1).max(axis=1))  # with the best number of children
        others = np.maximum(0.0, gain[1:] - slope)  # the first is on the chain
        paid = jump / np.maximum(np.maximum(others.sum(axis=0), jump), np.finfo(float).tiny)
        gain[1:] = others * (1 - paid)
        value[parents] += gain
    return np.asarray(value[0])


def _line_below(seconds: Float64) -> tuple[float, float]:
    """Return the non-negative slope and intercept of a line below the seconds at 1, 2, 3, …."""
    counts = np.arange(1, len(seconds) + 1)
    slope_s = float(min((seconds[-1] - seconds[0]) / max(1, len(seconds) - 1), (seconds / counts).min()))
    return slope_s, float((seconds - slope_s * counts).min())
