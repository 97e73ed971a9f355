"""Width limits on tables that rise, or depend on the parent's rank: one integer program per budget and depth.

    maximise    sum of reach[v] x[v]  +  left_out * sum of y[d]            x[v] 0 or 1, y[d] >= 0
    subject to  x[v] <= x[parent of v],  x[v] <= x[sibling before v],  x[root] = 1
                sum of x and y <= nodes
                x and y at depth d <= level_widths[d],  first children at depth d <= draft_widths[d]

x chooses among the heaviest nodes; y stands for all others, of which none is reached more often than `left_out` says.
So the maximum bounds every tree there is, and where y is 0 it is attained: the tree is the optimum.  Otherwise the
program is solved again with more nodes, and what gap remains at the end is reported.
"""

from dataclasses import dataclass, field

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int32, Int64
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.solver.best_first import HeaviestNodes, heaviest_nodes

MAX_PROGRAMS = 2000
"""Budgets times depths: some minutes."""
FIRST_NODES, MOST_NODES = 128, 2048
"""Nodes that a program chooses among, at first and at most."""
CLOSED = 1e-9
"""A bound that lies above by no more than this share is attained."""
SCALE = 1e4
"""Of the objective: the solver's absolute tolerance of 1e-6 becomes 1e-10 tokens."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LimitedTrees(ArrayRecord):
    """The best tree of every budget and depth within the limits, each by a program of its own."""

    expected_tokens: Float64
    """float64 (D + 1, N + 1): the most tokens per step with depth at most d and at most n nodes."""
    bounds: Float64
    """float64 (D + 1, N + 1): no tree yields more."""
    tree: tuple[tuple[tuple[int, ...], ...], ...]
    """Parents of the tree for every depth and number of nodes."""
    solved: int = field(default=0, compare=False)
    """Programs solved; a solution file does not say."""

    def parents(self, nodes: int, depth: int) -> list[int]:
        """Return the parents of one tree, each before its children, siblings in rank order."""
        return list(self.tree[depth][nodes])

    def draft_widths(self, depth: int) -> Int32:
        """Return int32 (N + 1, D): internal nodes at each depth of the trees of one depth limit."""
        levels, columns = self.expected_tokens.shape
        widths = np.zeros((columns, levels - 1), np.int32)
        for nodes in range(1, columns):
            depths = _depths(self.tree[depth][nodes])
            for internal in set(self.tree[depth][nodes][1:]):
                widths[nodes, depths[internal]] += 1
        return widths


def solve_limited(rows: Float64, max_nodes: int, level_widths: Int32, draft_widths: Int32) -> LimitedTrees:
    """Return the best trees within limits of widths, by integer programming (HiGHS).

    Args:
        rows: float64 (D, R, B), in any order.
        max_nodes: N.
        level_widths: int32 (D,), most nodes at depth 1 … D.
        draft_widths: int32 (D,), most internal nodes at depth 0 … D - 1.

    Raises InvalidValueError when there would be more than `MAX_PROGRAMS`.
    """
    levels = len(rows)
    if max_nodes * levels > MAX_PROGRAMS:
        raise InvalidValueError(
            f"level_widths, draft_widths: on a table that rises, or depends on the parent's rank, limits take a program "
            f"per budget and depth, at most {MAX_PROGRAMS}. Got {max_nodes} x {levels}: ask for fewer, or let rows fall."
        )
    rows = rows.copy()
    for d, most in enumerate(level_widths):
        rows[d, :, most:] = 0.0  # no rank beyond the limit can be drafted
    tokens, bounds = np.ones((levels + 1, max_nodes + 1)), np.ones((levels + 1, max_nodes + 1))
    tokens[:, 0] = bounds[:, 0] = 0.0
    trees: list[list[tuple[int, ...]]] = [[(-1,)] * (max_nodes + 1) for _ in range(levels + 1)]
    solved = 0
    for d in range(levels, 0, -1):
        for n in range(max_nodes, 1, -1):
            for above in ((d, n + 1), (d + 1, n)):  # the optimum of more, where it is no more
                if above[0] <= levels and above[1] <= max_nodes and _fits(trees[above[0]][above[1]], n, d):
                    tokens[d, n], bounds[d, n], trees[d][n] = tokens[above], bounds[above], trees[above[0]][above[1]]
                    break
            else:
                program = _solve(rows[:d], n, level_widths[:d], draft_widths[:d])
                tokens[d, n], bounds[d, n], trees[d][n] = program
                solved += 1
    return LimitedTrees(tokens, np.maximum(tokens, bounds), tuple(map(tuple, trees)), solved)


def _fits(parents: tuple[int, ...], nodes: int, depth: int) -> bool:
    return len(parents) <= nodes and max(_depths(parents)) <= depth


def _depths(parents: tuple[int, ...]) -> list[int]:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def _solve(rows: Float64, nodes: int, level_widths: Int32, draft_widths: Int32) -> tuple[float, float, tuple[int, ...]]:
    """Return the tokens of the best tree, a bound on all trees, and its parents.

    It is chosen among more and more nodes, until those left out cannot matter.
    """
    among = FIRST_NODES
    while True:
        candidates = heaviest_nodes(rows, max(among, nodes))
        chosen, bound = _program(candidates, nodes, level_widths, draft_widths)
        tokens = float(candidates.reach[chosen].sum())
        if bound <= tokens * (1 + CLOSED) or among >= MOST_NODES:
            parents = np.searchsorted(chosen, candidates.parent[chosen[1:]])
            return tokens, bound, (-1, *parents.tolist())
        among *= 4


def _program(candidates: HeaviestNodes, nodes: int, level_widths: Int32, draft_widths: Int32) -> tuple[Int64, float]:
    """Return which candidates the best tree is made of, in order, and a bound on the tokens of every tree."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    count, levels = len(candidates.parent), len(level_widths)
    places = np.arange(count)
    before = _before(candidates)
    follows = csr_array(
        (
            np.r_[np.ones(count - 1), -np.ones(count - 1)],
            (np.r_[places[1:], places[1:]] - 1, np.r_[places[1:], before[1:]]),
        ),
        shape=(count - 1, count + levels),
    )
    deep, first = candidates.depth[1:], np.flatnonzero(candidates.rank[1:] == 0) + 1
    others = count + np.arange(levels)
    limits = csr_array(
        (
            np.ones(count + levels + count - 1 + levels + len(first)),
            (
                np.r_[np.zeros(count + levels), deep, 1 + np.arange(levels), levels + candidates.depth[first]],
                np.r_[np.arange(count + levels), places[1:], others, first],
            ),
        ),
        shape=(1 + 2 * levels, count + levels),
    )
    result = milp(
        -SCALE * np.r_[candidates.reach, np.full(levels, candidates.left_out[-1])],
        integrality=np.r_[np.ones(count), np.zeros(levels)],
        bounds=Bounds(np.r_[1.0, np.zeros(count - 1 + levels)], np.r_[np.ones(count), np.full(levels, np.inf)]),
        constraints=[
            LinearConstraint(follows, ub=0.0),
            LinearConstraint(limits, ub=np.r_[nodes, level_widths, draft_widths]),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise TreeoptError(f"integer program: {result.message} Ask for fewer nodes.")
    return np.flatnonzero(result.x[:count] > 0.5), -float(result.mip_dual_bound) / SCALE


def _before(candidates: HeaviestNodes) -> Int64:
    """Return the node that each depends on: the sibling before it, or for a first child its parent."""
    place = {
        (parent, rank): node
        for node, (parent, rank) in enumerate(zip(candidates.parent.tolist(), candidates.rank.tolist(), strict=True))
    }
    return np.array([parent if rank == 0 else place[parent, rank - 1] for parent, rank in place])
