"""Measure the solver: every budget and depth in one call, on easy and hard tables; memory; the published recurrence.

python benchmarks/solver.py
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from common import describe_environment, progress
from tqdm import tqdm

from treeopt import AcceptanceTable, solve
from treeopt.arrays import Float64

BRANCHES = 32
SIZES = ((128, 10), (512, 16), (512, 32), (1024, 32), (2048, 32), (4096, 32))
LARGE = 16_384, 64
PLAIN = 128, 10
FALLING = np.array([0.7, *(0.12 / k**1.6 for k in range(1, BRANCHES))])


def noisy(*shape: int) -> Float64:
    """Return falling rows with the noise of a short measurement, so that some entries rise."""
    rows = FALLING * np.random.default_rng(1).lognormal(0, 0.3, size=(*shape, BRANCHES))
    return np.asarray(rows / np.maximum(1, rows.sum(axis=-1, keepdims=True)))


def shuffled(depth: int) -> Float64:
    return np.random.default_rng(2).permuted(noisy(depth), axis=1)


def dirichlet(depth: int) -> Float64:
    """Return Dirichlet rows, with most of the acceptance on a few random ranks."""
    return np.random.default_rng(3).dirichlet(np.full(BRANCHES, 0.3), size=depth)


FAMILIES: dict[str, Callable[[int], Float64]] = {
    "falling row": lambda _: FALLING,
    "noisy row": lambda _: noisy(),
    "noisy rows": noisy,
    "shuffled rows": shuffled,
    "Dirichlet rows": dirichlet,
}


def least_s(call: Callable[[], object]) -> float:
    """Return the minimum seconds of at least three calls, more if they take under a second in total."""
    times_s: list[float] = []
    while len(times_s) < 3 or (len(times_s) < 30 and sum(times_s) < 1):
        start_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def compile_all() -> None:
    for table in (FALLING, noisy(), noisy(2)):
        solve(AcceptanceTable(table), 8, 2).tree(8, 2)


def measure_times() -> None:
    """Print milliseconds per size and family, and the exponent of their growth with the budget at the last depth."""
    print(f"\nms to solve, and to extract the largest tree; {BRANCHES} branches, `rows` one per depth")
    print(f"{'nodes':>6}{'depth':>6}" + "".join(f"{name:>16}" for name in (*FAMILIES, "falling tree", "noisy tree")))
    rows: list[tuple[int, int, list[float]]] = []
    for nodes, depth in progress(SIZES, "sizes"):
        tables = [AcceptanceTable(family(depth)) for family in FAMILIES.values()]
        solve_s = [least_s(partial(solve, table, nodes, depth)) for table in tables]
        tree_s = [least_s(partial(solve(table, nodes, depth).tree, nodes, depth)) for table in tables[:3:2]]
        rows.append((nodes, depth, solve_s + tree_s))
        tqdm.write(f"{nodes:>6}{depth:>6}" + "".join(f"{1000 * seconds:>16.2f}" for seconds in solve_s + tree_s))
    deep = [(nodes, times_s) for nodes, depth, times_s in rows if depth == SIZES[-1][1]]
    powers = np.polyfit(np.log([nodes for nodes, _ in deep]), np.log([times_s for _, times_s in deep]), 1)[0]
    print(f"{'~ nodes^':>12}" + "".join(f"{power:>16.2f}" for power in powers))


def memory_mb(field: str) -> float:
    """Return a field of /proc/self/status: `VmRSS`, resident memory, or `VmHWM`, its peak since `reset_peak`."""
    (kilobytes,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return int(kilobytes) / 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def measure_large(family: str) -> None:
    """Print seconds and peak memory of a large problem; runs in a separate process."""
    compile_all()
    nodes, depth = LARGE
    table = AcceptanceTable(FAMILIES[family](depth))
    reset_peak()
    before_mb, start_s = memory_mb("VmRSS"), time.perf_counter()
    solution = solve(table, nodes, depth)
    solved_s, peak_mb = time.perf_counter(), memory_mb("VmHWM")
    solution.tree(nodes, depth)
    tree_s = time.perf_counter() - solved_s
    print(
        f"{nodes:>6}{depth:>6}  {family:<15}{solution.certificate.method:<17}{solved_s - start_s:>8.2f} s"
        f"{peak_mb - before_mb:>8.0f} MB   tree {1000 * tree_s:.0f} ms"
    )


def plain_recurrence(row: Float64, max_nodes: int, levels: int) -> Float64:
    """Return float64 (levels + 1, max_nodes + 1): the best values, by the recurrence of Chen et al., 2024, Algorithm 1.

    For every number of levels, branch and budget, numpy maximizes over the size of the last branch's subtree.
    """
    best = np.full((levels + 1, max_nodes + 1), -np.inf)
    for level in range(1, levels + 1):
        so_far = np.full(max_nodes + 1, -np.inf)  # exactly n nodes, with the branches so far as children of the root
        so_far[1] = 1.0
        best[level] = so_far
        for accepted in row if level > 1 else ():
            subtree, with_one_more = accepted * best[level - 1], np.full(max_nodes + 1, -np.inf)
            for n in range(2, max_nodes + 1):
                with_one_more[n] = (subtree[1:n] + so_far[n - 1 : 0 : -1]).max()
            so_far = with_one_more
            best[level] = np.maximum(best[level], so_far)
    return best


def compare_with_recurrence() -> None:
    """Print the time of the published recurrence over the solver's, after a check that the values are equal."""
    nodes, depth = PLAIN
    for name, row in (("falling row", FALLING), ("noisy row", noisy())):
        exact_sizes = plain_recurrence(row, nodes, depth + 1)[1:, 1:]
        table = AcceptanceTable(row)
        np.testing.assert_allclose(
            solve(table, nodes, depth).expected_tokens[:, 1:], np.maximum.accumulate(exact_sizes, axis=1), rtol=1e-12
        )
        plain_s = least_s(partial(plain_recurrence, row, nodes, depth + 1))
        treeopt_s = least_s(partial(solve, table, nodes, depth))
        print(
            f"{nodes:>6}{depth:>6}  {name:<12} plain recurrence {1000 * plain_s:.0f} ms, treeopt {1000 * treeopt_s:.2f} ms: "
            f"{plain_s / treeopt_s:,.0f} times, equal values"
        )


def main(arguments: list[str]) -> None:
    if arguments:
        measure_large(arguments[0])
        return
    print(describe_environment())
    compile_all()
    measure_times()
    print("\nin separate processes; peak memory above that before solving")
    for family in progress(FAMILIES, "large"):
        tqdm.write(
            subprocess.run(
                [sys.executable, __file__, family], check=True, capture_output=True, text=True
            ).stdout.strip()
        )
    print()
    compare_with_recurrence()


if __name__ == "__main__":
    main(sys.argv[1:])
