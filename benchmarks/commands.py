"""Whole commands, from start to exit: `treeopt --help` and `treeopt solve --budget 512`.

    python benchmarks/commands.py

The goals, on two cores with numba's cache warm: 0.3 s and 1.5 s, and for `--help` at most 2.5 times the CPU time of
importing click, the library that it is written with.  A profile with invented numbers is solved, of the
size that `treeopt profile` writes.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from conditions import bar, conditions, say

from treeopt import AcceptanceTable, LatencyTable, Profile
from treeopt.latency import Timing
from treeopt.profile import Machine, MeasuredAcceptance, Pair, StepLatency

RUNS = 7
STARTS = 41
"""Of `--help` and of click, in turn: so short a time needs many."""
MOST_STARTS = 2.5
"""How many times as long as importing click `--help` may take."""
TREEOPT = Path(sys.executable).with_name("treeopt")


def invented_profile() -> Profile:
    """Return a table of 16 depths x 16 ranks, curves of 26 counts x 25 samples."""
    generator = np.random.default_rng(0)
    counts = np.unique(np.geomspace(1, 512, 32).astype(int))

    def curve(first_s: float, per_token_s: float) -> LatencyTable:
        medians = first_s + per_token_s * counts
        return LatencyTable(counts, [Timing(median * generator.uniform(0.95, 1.1, 25)) for median in medians])

    row = 0.8 * np.array([1, *(0.15 / k**1.5 for k in range(1, 16))]) / 1.3
    return Profile(
        created="2026-01-01T00:00:00+00:00",
        tool="benchmark",
        machine=Machine(device="cpu", processor="invented", threads=1, system="none", python="none", torch="none"),
        pair=Pair(target="t", draft="d", dtype="float32", vocabulary=256, target_parameters=1, draft_parameters=1),
        latencies=(
            StepLatency(
                context_tokens=256,
                batch_size=1,
                verify=curve(1e-3, 6e-5),
                draft=curve(1.5e-4, 5e-6),
                overhead=Timing(generator.uniform(1e-4, 1.2e-4, 25)),
            ),
        ),
        acceptances=(
            MeasuredAcceptance(
                rule="sequoia",
                temperature=0.0,
                top_p=1.0,
                prompts=24,
                positions=4096,
                table=AcceptanceTable(
                    np.stack([row * 0.99**depth for depth in range(16)]), standard_error=np.full((16, 16), 0.005)
                ),
            ),
        ),
    )


def seconds(*command: str) -> list[float]:
    """Return the times of whole processes, after one that warms the caches."""
    times = []
    for _ in bar(range(RUNS + 1), command[0]):
        start_s = time.perf_counter()
        subprocess.run([TREEOPT, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - start_s)
    return sorted(times[1:])


def cpu_s(*command: str | Path) -> float:
    """Return the CPU time of a whole process."""

    def used_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before_s = used_s()
    subprocess.run(command, check=True, capture_output=True)
    return used_s() - before_s


def starts() -> str:
    """Return what `--help` takes beside importing click, in CPU time, which other programs hardly change."""
    pairs = [(cpu_s(TREEOPT, "--help"), cpu_s(sys.executable, "-c", "import click")) for _ in range(STARTS)]
    ours_s, clicks_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    return (
        f"treeopt --help: {ours_s:.3f} s of CPU, {ours_s / clicks_s:.2f} times as much as importing click, "
        f"{clicks_s:.3f} s (medians of {STARTS}; at most {MOST_STARTS} times is the goal)"
    )


def main() -> None:
    print(conditions())
    with tempfile.TemporaryDirectory() as folder:
        profile, tree = Path(folder) / "profile.yaml", Path(folder) / "tree.json"
        invented_profile().save(profile)
        solve = ("solve", "--profile", str(profile), "--budget", "512", "--output", str(tree))
        for name, command in (("--help", ("--help",)), ("solve --budget 512", solve)):
            times = seconds(*command)
            say(f"treeopt {name:<20} median {times[len(times) // 2]:.3f} s  (min {times[0]:.3f}, max {times[-1]:.3f})")
    say(starts())


if __name__ == "__main__":
    main()
