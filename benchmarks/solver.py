"""The solver: every budget x every depth from one call, and one tree out of it.

Run it alone with `python benchmarks/solver.py`.
"""

import time

import numpy as np
from conditions import conditions

from treeopt import AcceptanceTable, solve

SIZES = ((128, 10), (256, 16), (512, 16), (512, 32), (1024, 32))
BRANCHING = 32


def acceptance(depths: int | None) -> AcceptanceTable:
    """Return a falling row; with `depths`, one that shrinks a little with every depth."""
    row = np.array([0.7, *(0.12 / k**1.6 for k in range(1, BRANCHING))])
    return AcceptanceTable(row if depths is None else np.stack([row * 0.98**d for d in range(depths)]))


def best_of(runs: int, table: AcceptanceTable, nodes: int, depth: int) -> tuple[float, float]:
    """Return the least seconds to solve, and to take the largest tree out."""
    solve_s, tree_s = [], []
    for _ in range(runs):
        start_s = time.perf_counter()
        solution = solve(table, nodes, depth)
        solved_s = time.perf_counter()
        solution.tree(nodes, depth)
        tree_s.append(time.perf_counter() - solved_s)
        solve_s.append(solved_s - start_s)
    return min(solve_s), min(tree_s)


def main() -> None:
    print(conditions())
    best_of(1, acceptance(None), 8, 2)  # compiles
    print(
        f"{'nodes':>6}{'depth':>6}{'one row, ms':>14}{'row per depth, ms':>20}{'tree, ms':>10}   ({BRANCHING} branches)"
    )
    for nodes, depth in SIZES:
        one, tree = best_of(3, acceptance(None), nodes, depth)
        many, _ = best_of(3, acceptance(depth), nodes, depth)
        print(f"{nodes:>6}{depth:>6}{1000 * one:>14.2f}{1000 * many:>20.1f}{1000 * tree:>10.2f}")


if __name__ == "__main__":
    main()
