"""Compare the search for the fastest tree with the trees with the most tokens and with a sweep of uniform width limits.

Each line is an operating point: the predicted speedup of the fastest of the trees with the most tokens over all budgets and
depths, of the sweep's tree and of the search's; an upper bound on the gain of any other tree; and the seconds of both searches.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import describe_environment, progress
from tqdm import tqdm

from treeopt import AcceptanceTable, Profile, solve
from treeopt.planner import fastest_tree, model_at
from treeopt.planner.costs import StepCosts
from treeopt.planner.fastest import solution_speedups
from treeopt.planner.tokens import token_models

PROFILES = sorted((Path(__file__).parent.parent / "docs" / "profiles").glob("*.yaml"))
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Width limits of the sweep."""
CANDIDATES = 20
"""Trees of each limit that the sweep scores with the real table: the fastest with the monotone one."""


class Problem(NamedTuple):
    """An acceptance table at an operating point."""

    name: str
    table: AcceptanceTable
    costs: StepCosts
    nodes: int


def measured_problems(paths: list[Path]) -> Iterator[Problem]:
    """Yield every acceptance of the profiles at every measured operating point, up to the largest pass."""
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


def sweep(problem: Problem, depth: int) -> float:
    """Return the speedup of the fastest tree with the same width limit at each level.

    Trees are solved with a monotone table and scored with the real one.
    """
    table, costs, best = problem.table, problem.costs, 1.0
    monotone = AcceptanceTable(np.minimum.accumulate(table.rows(depth).mean(axis=1), axis=1))
    for limit in LIMITS if depth else ():
        solution = solve(monotone, problem.nodes, depth, draft_widths=[1, *[limit] * (depth - 1)])
        speedups = solution_speedups(solution, costs)
        candidates = np.argsort(-speedups, axis=None, kind="stable")[:CANDIDATES]
        for level, nodes in zip(*np.unravel_index(candidates, speedups.shape), strict=True):
            if speedups[level, nodes] > 0:
                tree = solution.tree(int(nodes), int(level))
                tokens = np.array([table.expected_tokens(tree)])
                best = max(best, float(costs.speedup(tokens, costs.tree_s(tree)[None])[0]))
    return best


def compare(problem: Problem) -> str:
    solution = solve(problem.table, problem.nodes)
    speedups = solution_speedups(solution, problem.costs)
    start_s = time.perf_counter()
    sweep_speedup = sweep(problem, solution.max_depth)
    middle_s = time.perf_counter()
    fastest = fastest_tree(solution, problem.costs, speedups=speedups)
    end_s = time.perf_counter()
    return (
        f"{problem.name}{float(speedups.max()):>13.4f}{sweep_speedup:>9.4f}{fastest.speedup:>9.4f}"
        f"{100 * (fastest.bound / fastest.speedup - 1):>9.2f}{middle_s - start_s:>9.3f}{end_s - middle_s:>11.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, nargs="+", default=PROFILES, help="by default those of docs/profiles")
    args = parser.parse_args()
    problems = list(measured_problems(args.profiles))
    tqdm.write(describe_environment())
    title = f"{'profile':<46}{'rule':<11}{'temp':>4}{'ctx':>6}{'b':>3}"
    tqdm.write(f"{title}{'most tokens':>13}{'sweep':>9}{'fastest':>9}{'bound, %':>9}{'sweep, s':>9}{'fastest, s':>11}")
    for problem in progress(problems, "searching"):
        tqdm.write(compare(problem))


if __name__ == "__main__":
    main()
