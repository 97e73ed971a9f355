"""Measure whole commands: seconds, CPU seconds and peak memory of each process.

    python benchmarks/commands.py

The goals, on two cores: 0.3 s for `treeopt --help`, and at most 2.5 times the CPU time of importing click; 1.5 s for
`treeopt solve --budget 512`, and 6 s for the first one after installation, when numba's cache is empty; 3 s for 4096 nodes x 32
levels, and 5 s for 50 operating points, each in less than 500 MB. The solved profiles have invented numbers and the size of
those that `treeopt profile` writes.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import progress
from tqdm import tqdm

from treeopt import AcceptanceTable, LatencyTable, Profile
from treeopt.cli.main import Commands
from treeopt.records.latency import Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import GREEDY
from treeopt.records.step_latency import StepLatency
from treeopt.trees import chain

RUNS = 5
STARTS = 41
"""Alternating starts of `--help` and of click: short times need many."""
MAX_START_RATIO = 2.5
"""Goal for the CPU time of `--help` over that of importing click."""
SMALL = (
    "show tree.json",
    "import tree.json -o other.json",
    "compare tree.json --profile profile.yaml",
    "export profile.yaml --to vllm",
    "export tree.json --to nxdi",
    "report profile.yaml -o report.html",
)
"""Commands on a chain of 7 draft tokens, and a profile of one operating point."""
HERE = Path(__file__).resolve().parent
TREEOPT = str(Path(sys.executable).with_name("treeopt"))
FIFTY = [(context, batch) for batch in (1, 2, 4, 8, 16) for context in range(256, 2816, 256)]
"""Context lengths and batch sizes."""
CPU, GPU = (1e-3, 6e-5), (1e-2, 1e-6)
"""Seconds of a pass over one token, and of each additional token."""


class Process(NamedTuple):
    """Resources that a process used."""

    seconds: float
    cpu_s: float
    peak_mb: float


def invented_profile(
    *,
    nodes: int = 512,
    levels: int = 16,
    measured: Sequence[tuple[int, int]] = ((256, 1),),
    machine: tuple[float, float] = CPU,
    rises: bool = False,
) -> Profile:
    """Return a profile with 16 ranks and curves of at least 26 sizes x 25 samples; `rises`: acceptance is not monotone."""
    generator = np.random.default_rng(0)
    counts = np.unique(np.geomspace(1, nodes, 32).astype(int))

    def curve(first_s: float, per_token_s: float) -> LatencyTable:
        medians = first_s + per_token_s * counts
        return LatencyTable(counts, [Timing(median * generator.uniform(0.95, 1.1, 25)) for median in medians])

    row = 0.8 * np.array([1, *(0.15 / k**1.5 for k in range(1, 16))]) / 1.3
    rows = np.stack([row * 0.99**depth for depth in range(levels)])
    if rises:  # by more than sampling error
        rows *= generator.lognormal(0, 0.3, rows.shape)
        rows /= np.maximum(1, rows.sum(axis=1, keepdims=True))
    first_s, token_s = machine
    return Profile(
        created="2026-01-01T00:00:00+00:00",
        tool="benchmark",
        machine=Machine(device="cpu", processor="invented", threads=1, system="none", python="none", torch="none"),
        pair=Pair(target="t", draft="d", dtype="float32", vocabulary=256, target_parameters=1, draft_parameters=1),
        latencies=tuple(
            StepLatency(
                context_tokens=context,
                batch_size=batch,
                verify=curve(first_s + 1e-7 * context * batch, token_s * batch),
                draft=curve(1.5e-4 + 1e-8 * context * batch, 5e-6 * batch),
                overhead=Timing(generator.uniform(1e-4, 1.2e-4, 25)),
            )
            for context, batch in measured
        ),
        acceptances=(
            MeasuredAcceptance(
                rule="sequoia",
                sampling=GREEDY,
                prompts=24,
                positions=4096,
                table=AcceptanceTable(rows, standard_error=np.full(rows.shape, 1e-4 if rises else 0.005)),
            ),
        ),
    )


def run(command: Sequence[str], numba_cache: Path) -> Process:
    start_s = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"NUMBA_CACHE_DIR": str(numba_cache)},
    ) as process:
        assert process.stderr is not None
        stderr = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(stderr)
    return Process(time.perf_counter() - start_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def report(name: str, arguments: Sequence[str], folder: Path, *, fresh: bool = False) -> None:
    """Print the resources of a treeopt command; with `fresh`, first with an empty numba cache."""
    command = [TREEOPT, *arguments]
    if fresh:
        with tempfile.TemporaryDirectory() as empty:
            print_processes(f"{name}, first", [run(command, Path(empty))])
    run(command, folder / "cache")
    print_processes(name, [run(command, folder / "cache") for _ in progress(range(RUNS), name)])


def print_processes(name: str, processes: Sequence[Process]) -> None:
    seconds, cpu_s, peak_mb = zip(*processes, strict=True)
    spread = f"({min(seconds):.2f}-{max(seconds):.2f})" if len(processes) > 1 else ""
    tqdm.write(
        f"{name:<50}{np.median(seconds):>6.2f} s {spread:<12} CPU {np.median(cpu_s):>5.2f} s, {max(peak_mb):>4.0f} MB"
    )


def compare_starts(folder: Path) -> str:
    """Compare `--help` with importing click, in CPU time, which other programs hardly affect."""
    commands = [TREEOPT, "--help"], [sys.executable, "-c", "import click"]
    pairs = [[run(command, folder).cpu_s for command in commands] for _ in progress(range(STARTS), "starts")]
    treeopt_s, click_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    return (
        f"treeopt --help: {treeopt_s:.3f} s of CPU, {treeopt_s / click_s:.2f} times as much as importing click, "
        f"{click_s:.3f} s (medians of {STARTS}; at most {MAX_START_RATIO} times is the goal)"
    )


def main() -> None:
    # in another process: it loads torch, and memory of this process counts in the peak of its children
    subprocess.run([sys.executable, "-c", "import common; print(common.describe_environment())"], cwd=HERE, check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report("--help", ["--help"], folder)
        for subcommand in Commands.subcommands:
            report(f"{subcommand} --help", [subcommand, "--help"], folder)
        for title, profile, options, fresh in (
            ("solve --budget 512", invented_profile(), ("--budget", "512"), True),
            ("the same, acceptance not monotone", invented_profile(rises=True), ("--budget", "512"), True),
            ("4096 nodes x 32 levels, expensive nodes", invented_profile(nodes=4096, levels=32), (), False),
            ("4096 x 32, almost free nodes", invented_profile(nodes=4096, levels=32, machine=GPU), (), False),
            ("4096 x 32, acceptance not monotone", invented_profile(nodes=4096, levels=32, rises=True), (), False),
            ("50 operating points of 512 nodes x 16 levels", invented_profile(measured=FIFTY), (), False),
        ):
            profile.save(folder / "profile.yaml")
            command = ["solve", "--profile", str(folder / "profile.yaml"), "-o", str(folder / "tree.json"), *options]
            report(title, command, folder, fresh=fresh)
        invented_profile().save(folder / "profile.yaml")
        chain(7).save(folder / "tree.json")
        for line in SMALL:
            report(line, [str(folder / word) if "." in word else word for word in line.split()], folder)
        tqdm.write(compare_starts(folder))


if __name__ == "__main__":
    main()
