"""The planner on invented machines: what looking at the width of every level gains, how long it takes, what is proven.

Run it alone with `python benchmarks/planner.py`.
"""

import time
from collections.abc import Callable

import numpy as np
from conditions import bar, conditions, say

from treeopt import AcceptanceTable, solve
from treeopt.arrays import Float64
from treeopt.planner import fastest_tree
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.planner.fastest import speeds

Cost = Callable[[Float64], Float64]

NODES, DEPTH, BRANCHES = 512, 16, 16
LARGE = 4096, 32
OVERHEAD_S = 0.02
MACHINES: dict[str, tuple[Cost, Cost]] = {
    "small models on a CPU": (lambda n: 2.5 + 0.14 * n, lambda w: 0.35 + 0.017 * w),
    "drafts flat, passes in tiles of 64": (lambda n: 1 + 5e-4 * n + 0.3 * ((n - 1) // 64), lambda w: 0.1 + 5e-4 * w),
    "drafts and passes in tiles": (
        lambda n: 1 + 2e-4 * n + 0.2 * ((n - 1) // 128),
        lambda w: 0.08 + 0.02 * ((w - 1) // 16),
    ),
    "wider drafts dearer": (lambda n: 1 + 2e-3 * n, lambda w: 0.05 + 0.01 * w),
    "wider drafts dearer, less and less": (lambda n: 1 + 2e-3 * n, lambda w: 0.05 * np.sqrt(w)),
    "passes nearly flat": (lambda n: 1 + 1e-4 * n, lambda w: 0.02 + 4e-3 * w),
    "target offloaded": (lambda n: 10 + 1e-3 * n, lambda w: 0.1 + 0.02 * w),
    "no order at all": (lambda n: rising(n, 0, 1.0, 3.0), lambda w: rising(w, 1, 0.02, 0.3)),
}
ROWS = {
    "as measured": np.array([0.7, *(0.12 / k**1.6 for k in range(1, BRANCHES))]),
    "flat": np.full(BRANCHES, 0.055),
    "steep": np.array([0.85, *[0.01] * (BRANCHES - 1)]),
}


def rising(counts: Float64, seed: int, least: float, most: float) -> Float64:
    return np.sort(np.random.default_rng(seed).uniform(least, most, len(counts)))


def costs_of(verify: Cost, draft: Cost, nodes: int = NODES) -> StepCosts:
    counts = np.arange(1.0, nodes + 1)
    return StepCosts(
        verify=Curve.of(np.append(0.0, verify(counts))),
        draft=Curve.of(np.append(0.0, draft(counts))),
        overhead_s=np.array(OVERHEAD_S),
    )


def searched(row: Float64, rows: str, nodes: int, depth: int) -> None:
    """Print what is found on every machine, and how long that takes."""
    solution = solve(AcceptanceTable(np.stack([row * 0.98**d for d in range(depth)])), nodes, depth)
    for machine, curves in bar(MACHINES.items(), rows):
        costs = costs_of(*curves, nodes)
        start_s = time.perf_counter()
        found = fastest_tree(solution, costs)
        taken_ms = 1000 * (time.perf_counter() - start_s)
        most_tokens = float(speeds(solution, costs).max())
        gain = 100 * max(0.0, found.speedup / most_tokens - 1)  # below 0 by rounding only
        say(
            f"{machine:<36}{rows:<13}{most_tokens:>12.3f}{found.speedup:>9.3f}{gain:>9.1f}"
            f"{100 * found.loss:>9.2f}{found.boxes:>7}{taken_ms:>8.1f}"
        )


def main() -> None:
    print(conditions())
    for nodes, depth, tables in ((NODES, DEPTH, ROWS), (*LARGE, {"as measured": ROWS["as measured"]})):
        say(f"{nodes} nodes, {depth} levels, {BRANCHES} branches; speedup over plain decoding")
        say(
            f"{'machine':<36}{'acceptance':<13}{'most tokens':>12}{'fastest':>9}{'gain, %':>9}{'open, %':>9}"
            f"{'boxes':>7}{'ms':>8}"
        )
        for rows, row in tables.items():
            searched(row, rows, nodes, depth)


if __name__ == "__main__":
    main()
