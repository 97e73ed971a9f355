"""An upper bound on the speedup of any tree, from costs that are at most the real ones.

For each depth and number of nodes the smaller of two bounds counts:

- By width: a tree has at most the tokens that the solver found, and takes at least the seconds of a chain of its depth
  and a pass over its nodes.
- By price: each node has a price, and each internal node beside the chain of first children has another one.  At these
  prices each node decides alone whether it has children, so the best set of nodes follows from the leaves up.
"""

import numpy as np

from treeopt.arrays import Float64
from treeopt.planner.costs import StepCosts
from treeopt.solver import Solution
from treeopt.solver.best_first import TopNodes, top_nodes

CLOSED = 1e-9
"""A bound above the speedup by a smaller share is equal to it: rounding."""
PRICED = 2
"""Nodes that get a price, as a multiple of the largest tree's; the lowest price covers the others."""
PRICES, ROUNDS = 6, 3
"""Prices of a node that are tried at once, and how often; each time between the best of those before."""


def bound_by_width(solution: Solution, costs: StepCosts) -> Float64:
    """Return (max_depth, max_nodes - 1): a speedup that no tree of depth 1, 2, … and 2, 3, … nodes exceeds."""
    return np.asarray(solution.expected_tokens[1:, 2:] / _least_s(solution, costs) * costs.plain_s)


def upper_bound(solution: Solution, costs: StepCosts, speedup: float) -> float:
    """Return a speedup that no tree exceeds; `speedup`, that of some tree and at least 1, if none is faster.

    Prices are used if rank 0 is the likeliest child everywhere and no row depends on the parent's rank.  Then the chain
    of first children is part of a fastest tree: a subtree elsewhere could move there without any loss.
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
            break  # no tree of this depth, or of those that follow, raises the bound
        trees = int(np.flatnonzero(bounds[row] > bound)[-1]) + 1
        tokens, least_s = solution.expected_tokens[row + 1, 2 : trees + 2], seconds[row, :trees]
        excess = np.maximum(0.0, _most_excess(listed, row + 1, costs, rate, tokens, least_s))
        by_price = speedup + excess / least_s * costs.plain_s
        bound = max(bound, float(np.minimum(bounds[row, :trees], by_price).max()))
    return bound if bound > speedup * (1 + CLOSED) else speedup


def _least_s(solution: Solution, costs: StepCosts) -> Float64:
    """Return the same shape: seconds of a step whose levels are all one node wide."""
    drafting_s = costs.chain_s(np.arange(1, solution.max_depth + 1))[:, None]
    return np.asarray(drafting_s + costs.verify_s[2 : solution.max_nodes + 1] + costs.overhead_s)


def _most_excess(
    listed: TopNodes, depth: int, costs: StepCosts, rate: float, tokens: Float64, seconds: Float64
) -> Float64:
    """Return (trees,): by how much the tokens of a tree exceed `rate` times its seconds at most.

    A level with `m` internal nodes beside the chain costs at least `jump_s + slope_s * m` more than a chain's.  Each of
    these nodes pays `slope_s` and a share of `jump_s`, in proportion to what it gains (Erlenkotter, 1978).  A price on
    each node as well makes the size free: the best value at a price, plus the price of n nodes, bounds the value of all
    trees of n nodes (Everett, 1963).

    Args:
        listed: nodes, of which those within the depth count.
        depth: of the trees.
        costs: of one condition.
        rate: tokens per second.
        tokens: (trees,), for 2, 3, … nodes: the most tokens.
        seconds: (trees,): the least seconds.
    """
    spare_s = float((tokens / rate - seconds).max())  # the most that one level may cost beyond a chain's
    more_s = costs.level_s[2:] - costs.level_s[1]
    more_s = more_s[: np.count_nonzero(more_s <= spare_s * (1 + CLOSED))]
    slope_s, jump_s = _line_below(more_s) if len(more_s) else (np.inf, 0.0)
    likely = np.sort(listed.bound[listed.depth <= depth])[::-1]
    lowest = float(listed.bound_outside[depth])  # below this price, nodes that are not listed would count
    places = np.unique(np.geomspace(1, PRICED * (len(tokens) + 1), PRICES).astype(int)) - 1
    verified = rate * (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1)  # what verifying a node costs on average
    prices = np.unique(np.maximum(lowest, [0.0, verified, *likely[places[places < len(likely)]]]))
    nodes, most = np.arange(2, len(tokens) + 2), np.full(len(tokens), np.inf)
    for _ in range(ROUNDS):
        bounds = _most_value(listed, depth, prices, rate * slope_s, rate * jump_s) + nodes[:, None] * prices
        most = np.minimum(most, bounds.min(axis=1))
        loosest = int((most / seconds).argmax())
        place = int(bounds[loosest].argmin())
        prices = np.linspace(prices[max(0, place - 1)], prices[min(place + 1, len(prices) - 1)], PRICES)
    return np.asarray(most - rate * seconds)


def _most_value(listed: TopNodes, depth: int, prices: Float64, slope: float, jump: float) -> Float64:
    """Return (prices,): the value of the best tree at each price of a node, all in tokens; see `_most_excess`."""
    value = listed.reach[:, None] - prices  # (nodes, prices): of each node with the best of its descendants
    for level in range(depth, 0, -1):
        (children,) = np.nonzero(listed.depth == level)
        if len(children) == 0:
            continue
        parents, row = np.unique(listed.parent[children], return_inverse=True)
        gain = np.full((len(parents), int(listed.rank[children].max()) + 1, len(prices)), -np.inf)
        gain[row, listed.rank[children]] = value[children]
        gain = np.maximum(0.0, np.cumsum(gain, axis=1).max(axis=1))  # of the best number of children
        others = np.maximum(0.0, gain[1:] - slope)  # the first is the chain's
        paid = jump / np.maximum(np.maximum(others.sum(axis=0), jump), np.finfo(float).tiny)
        gain[1:] = others * (1 - paid)
        value[parents] += gain
    return np.asarray(value[0])


def _line_below(seconds: Float64) -> tuple[float, float]:
    """Return the slope and the height at 0 of a line below seconds at 1, 2, 3 and so on; neither is negative."""
    counts = np.arange(1, len(seconds) + 1)
    slope_s = float(min((seconds[-1] - seconds[0]) / max(1, len(seconds) - 1), (seconds / counts).min()))
    return slope_s, float((seconds - slope_s * counts).min())
