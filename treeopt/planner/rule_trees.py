"""The best trees under one rule: solved once, and then searched for the fastest under any condition."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Bool, Float64
from treeopt.planner.costs import StepCosts
from treeopt.planner.fastest import Fastest, fastest_tree
from treeopt.planner.tokens import TokenModel
from treeopt.solver import Solution, solve
from treeopt.trees import TokenTree, chain

RIVALS = 100
"""Trees, the fastest of all budgets and depths, that the chosen one is compared with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RuleTrees:
    """The trees of most tokens by one acceptance."""

    tokens: TokenModel
    solution: Solution
    level_widths: int | Sequence[int] | None

    @classmethod
    def solve(
        cls,
        tokens: TokenModel,
        max_nodes: int,
        max_depth: int | None = None,
        level_widths: int | Sequence[int] | None = None,
    ) -> "RuleTrees":
        """Solve for the trees of every budget and depth; arguments and errors are those of `treeopt.solve`."""
        solution = solve(tokens.acceptance.table, max_nodes, max_depth, level_widths=level_widths)
        return cls(tokens=tokens, solution=solution, level_widths=level_widths)

    def fastest(self, costs: StepCosts, speedups: Float64) -> Fastest:
        """Return the fastest tree by the acceptance table alone.

        Args:
            costs: of one condition.
            speedups: (max_depth + 1, max_nodes + 1), of every tree of the solution; see `fastest.speeds`.
        """
        return fastest_tree(self.solution, costs, level_widths=self.level_widths, speedups=speedups)

    @property
    def chains(self) -> list[TokenTree]:
        """Plain decoding and all chains within the budget and depth."""
        return [chain(depth) for depth in range(min(self.solution.max_depth, self.solution.max_nodes - 1) + 1)]

    def row(self, speedups: Float64) -> list[TokenTree]:
        """Return the fastest tree of 2, 4, 8, … nodes and of the most; sizes that no best tree has are left out.

        Args:
            speedups: as for `fastest`.
        """
        speedups, most = np.where(self._exact, speedups, 0.0), self.solution.max_nodes
        sizes = {2**i for i in range(1, most.bit_length())} | {most}
        columns = [nodes for nodes in sorted(sizes) if speedups[:, nodes].any()]
        return [self._tree(nodes, int(speedups[:, nodes].argmax())) for nodes in columns]

    def rivals(self, speedups: Float64) -> list[TokenTree]:
        """Return the fastest of the trees, each once; `speedups` as for `fastest`."""
        shallowest = self.solution.tree_depth == np.arange(self.solution.max_depth + 1)[:, None]
        speedups = np.where(self._exact & shallowest, speedups, 0.0)
        places = np.argsort(-speedups, axis=None, kind="stable")[:RIVALS]
        return [
            self._tree(int(nodes), int(depth))
            for depth, nodes in zip(*np.unravel_index(places, speedups.shape), strict=True)
            if speedups[depth, nodes] > 0
        ]

    def _tree(self, nodes: int, depth: int) -> TokenTree:
        """Return a tree of the solution; kept, because most conditions have most of their rivals in common."""
        if (nodes, depth) not in self._trees:
            self._trees[nodes, depth] = self.solution.tree(nodes, depth)
        return self._trees[nodes, depth]

    @property
    def _exact(self) -> Bool:
        """Where a tree has all the nodes of its budget."""
        return np.asarray(self.solution.tree_nodes == np.arange(self.solution.max_nodes + 1))

    @cached_property
    def _trees(self) -> dict[tuple[int, int], TokenTree]:
        return {}
