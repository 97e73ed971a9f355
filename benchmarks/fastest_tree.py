"""The search for the fastest tree, next to the trees with the most tokens and to a sweep of uniform width limits.

Each line is one condition: the predicted speedup of the fastest of the trees with the most tokens over all budgets and
depths, of the sweep and of the search, by how much a faster tree could exceed it at most, and how long the sweep and
the search take.  `--profiles` takes other profiles; `--invented` prints invented machines instead.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from conditions import bar, conditions, say

from treeopt import AcceptanceTable, Profile, solve
from treeopt.arrays import Float64
from treeopt.planner import fastest_tree, model_at
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.planner.fastest import speeds
from treeopt.planner.tokens import token_models

Cost = Callable[[Float64], Float64]

PROFILES = sorted((Path(__file__).parent.parent / "docs" / "profiles").glob("*.yaml"))
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Width limits of the sweep."""
CANDIDATES = 20
"""Trees of each limit, the fastest by the monotone table, that the sweep scores by the real one."""
BRANCHES, OVERHEAD_S = 16, 0.02
SIZES = (512, 16), (4096, 32)
"""Nodes and levels of the invented problems."""
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
    "no order at all": (lambda n: random_curve(n, 0, 1.0, 3.0), lambda w: random_curve(w, 1, 0.02, 0.3)),
}
ROWS = {
    "as measured": np.array([0.7, *(0.12 / k**1.6 for k in range(1, BRANCHES))]),
    "flat": np.full(BRANCHES, 0.055),
    "steep": np.array([0.85, *[0.01] * (BRANCHES - 1)]),
}


class Problem(NamedTuple):
    """One acceptance table under one condition."""

    name: str
    table: AcceptanceTable
    costs: StepCosts
    nodes: int
    depth: int | None = None


def measured_problems(paths: list[Path]) -> Iterator[Problem]:
    """Yield every acceptance of the profiles under every measured condition, up to the largest pass."""
    for path in paths:
        profile = Profile.load(path)
        for acceptance in profile.acceptances if profile.has_draft_model else ():
            models = token_models(profile, acceptance)
            for latency in profile.latencies_at(acceptance.temperature):
                point = profile.at(latency.context_tokens, latency.batch_size, acceptance.sampling)
                model = model_at(point, models.at(point.context_tokens))
                name = (
                    f"{path.stem.removesuffix('-bfloat16-graphs'):<36}{acceptance.rule:<11}{acceptance.temperature:>4g}"
                    f"{latency.context_tokens:>6}{latency.batch_size:>3}"
                )
                yield Problem(name, model.acceptance.table, model.costs, point.max_nodes)


def invented_problems() -> Iterator[Problem]:
    for nodes, depth in SIZES:
        for rows, row in ROWS.items():
            table = AcceptanceTable(np.stack([row * 0.98**d for d in range(depth)]))
            for machine, curves in MACHINES.items():
                yield Problem(
                    f"{machine:<36}{rows:<12}{nodes:>5}{depth:>3}", table, costs_of(*curves, nodes), nodes, depth
                )


def costs_of(verify: Cost, draft: Cost, nodes: int) -> StepCosts:
    counts = np.arange(1.0, nodes + 1)
    return StepCosts(
        verify=Curve.of(np.append(0.0, verify(counts))),
        draft=Curve.of(np.append(0.0, draft(counts))),
        overhead_s=np.array(OVERHEAD_S),
    )


def random_curve(counts: Float64, seed: int, least: float, most: float) -> Float64:
    return np.sort(np.random.default_rng(seed).uniform(least, most, len(counts)))


def sweep(problem: Problem, depth: int) -> float:
    """Return the speedup of the fastest tree with the same width limit at each level.

    Trees are grown by a table that never rises, and scored by the real one.
    """
    table, costs, best = problem.table, problem.costs, 1.0
    monotone = AcceptanceTable(np.minimum.accumulate(table.rows(depth).mean(axis=1), axis=1))
    for limit in LIMITS if depth else ():
        solution = solve(monotone, problem.nodes, depth, draft_widths=[1, *[limit] * (depth - 1)])
        speedups = speeds(solution, costs)
        places = np.argsort(-speedups, axis=None, kind="stable")[:CANDIDATES]
        for level, nodes in zip(*np.unravel_index(places, speedups.shape), strict=True):
            if speedups[level, nodes] > 0:
                tree = solution.tree(int(nodes), int(level))
                tokens = np.array([table.expected_tokens(tree)])
                best = max(best, float(costs.speedup(tokens, costs.tree_s(tree)[None])[0]))
    return best


def compare(problem: Problem) -> str:
    """Return the line of one problem."""
    solution = solve(problem.table, problem.nodes, problem.depth)
    speedups = speeds(solution, problem.costs)
    start_s = time.perf_counter()
    swept = sweep(problem, solution.max_depth)
    middle_s = time.perf_counter()
    found = fastest_tree(solution, problem.costs, speedups=speedups)
    end_s = time.perf_counter()
    return (
        f"{problem.name}{float(speedups.max()):>13.4f}{swept:>9.4f}{found.speedup:>9.4f}"
        f"{100 * (found.bound / found.speedup - 1):>9.2f}{middle_s - start_s:>9.3f}{end_s - middle_s:>11.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, nargs="+", default=PROFILES)
    parser.add_argument("--invented", action="store_true", help="Solve invented machines of 512 and 4096 nodes.")
    args = parser.parse_args()
    problems = list(invented_problems() if args.invented else measured_problems(args.profiles))
    say(conditions())
    title = (
        f"{'machine':<36}{'acceptance':<12}{'nodes':>5}{'':>3}"
        if args.invented
        else (f"{'profile':<46}{'rule':<11}{'temp':>4}{'ctx':>6}{'b':>3}")
    )
    say(f"{title}{'most tokens':>13}{'sweep':>9}{'fastest':>9}{'open, %':>9}{'sweep, s':>9}{'fastest, s':>11}")
    for problem in bar(problems, "searching"):
        say(compare(problem))


if __name__ == "__main__":
    main()
