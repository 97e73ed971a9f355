"""Measure the profiles of docs/profiles on this machine: models of random weights, with published acceptance.

On a GPU, from the source tree:

    PYTHONPATH=. python tools/gallery.py --acceptance acceptance.json

The defaults of targets, drafts, contexts and dtype depend on the device. Every profile is written as soon as it is
measured.
"""

import argparse
import math
import re
import shlex
import sys
import time
from itertools import product
from pathlib import Path

import torch
from gallery_shapes import SHAPES, random_model

from treeopt.engines.importers import read_acceptance
from treeopt.files.atomic_files import read_text
from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json
from treeopt.profiler import Checkpoint, Settings, clock_for
from treeopt.profiler.budget import Deadline
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.memory import release_memory
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.machine import describe_machine
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Machine, now
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported, StepLatency
from treeopt.runtime import Transformer
from treeopt.runtime.models.pair import describe_pair
from treeopt.version import TOOL

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "profiles"
PASS_MODES = {"graphs": True, "eager": False}
RULE = "sequoia"
"""Rule of the published acceptance by rank."""
TEMPERATURE = 0.6
"""Of the timed steps and of the acceptance."""
MAX_BYTES = 4_000_000
ON_CUDA = {
    "targets": ("1b", "7b", "13b"),
    "drafts": ("68m", "160m"),
    "context_tokens": (256, 4096),
    "max_tokens": 512,
    "dtype": "bfloat16",
    "pass_modes": tuple(PASS_MODES),
}
ON_CPU = {
    "targets": ("110m",),
    "drafts": ("30m",),
    "context_tokens": (256, 1024),
    "max_tokens": 256,
    "dtype": "float32",
    "pass_modes": ("eager",),
}
"""Default options by type of device."""


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    measure_all(parse_arguments(arguments), command=shlex.join(["python", "tools/gallery.py", *arguments]))


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options, with the device's defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--targets", nargs="+", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--drafts", nargs="+", choices=SHAPES, metavar="SHAPE")
    parser.add_argument(
        "--pass-modes", nargs="+", choices=PASS_MODES, help="passes as CUDA graphs or as single kernels"
    )
    parser.add_argument("--context-tokens", nargs="+", type=int, metavar="TOKENS")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--time-budget", type=float, metavar="S", help="timed seconds of each pair, in place of --rounds"
    )
    parser.add_argument(
        "--acceptance", type=Path, metavar="FILE", required=True, help="one table, or a JSON object of several"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where profiles are written")
    device = parser.parse_args(arguments).device
    parser.set_defaults(**(ON_CUDA if device.startswith("cuda") else ON_CPU))
    return parser.parse_args(arguments)


def measure_all(options: argparse.Namespace, *, command: str) -> None:
    """Write a profile of every pair, with CUDA graphs and without as requested; load each target once."""
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    tables = read_acceptances(options.acceptance)
    for target_shape in options.targets:
        target = random_model(target_shape, dtype=dtype, device=device)
        for draft_shape, mode in product(options.drafts, options.pass_modes):
            draft = random_model(draft_shape, dtype=dtype, device=device, seed=1)
            profile = Profile(
                created=now(),
                tool=f"{TOOL}, by {command}",
                machine=describe_machine(device),
                pair=describe_pair(target, draft),
                latencies=measure_latencies(target, draft, profile_settings(options, mode), options.time_budget),
                acceptances=tables,
            )
            names = machine_name(profile.machine), target_shape, draft_shape, options.dtype, mode
            path = options.folder / f"{'-'.join(names)}.yaml"
            profile.save(path)
            print(f"Written to {path}", file=sys.stderr)
        del target, draft
        release_memory()


def profile_settings(options: argparse.Namespace, mode: str) -> Settings:
    return Settings(
        samplings=(Sampling(TEMPERATURE),),
        context_tokens=tuple(options.context_tokens),
        max_tokens=options.max_tokens,
        rounds=options.rounds,
        time_budget_s=options.time_budget,
        cuda_graphs=PASS_MODES[mode],
    )


def measure_latencies(
    target: Transformer, draft: Transformer, settings: Settings, budget_s: float | None
) -> tuple[StepLatency, ...]:
    """Return the latencies of a pair at every operating point; the context is every token of the vocabulary in order."""
    context = range(target.config.vocabulary)
    clock = clock_for(target.device)
    grid = LatencyGrid(target, draft, context, settings, Recorder(clock, Checkpoint(None, "")))
    point_s = math.inf if budget_s is None else budget_s / len(grid.points())

    def measure(timer: PointTimer) -> None:
        timer.measure(deadline=Deadline(time.monotonic, time.monotonic() + point_s))

    return tuple(timer.latency() for timer in grid.time_points(measure, lambda: None).values())


def read_acceptances(path: Path) -> tuple[MeasuredAcceptance, ...]:
    """Return the acceptance by rank in a file, or all those of a JSON object of several.

    Raises FormatError.
    """
    content = parse_json(path, read_text(path, limit_bytes=MAX_BYTES)) if path.suffix == ".json" else None
    items = content.items() if isinstance(content, dict) else ()
    tables = {name: Fields(path, value, name) for name, value in items if isinstance(value, dict) and "p" in value}
    if not tables:
        return (read_acceptance(path, sampling=Sampling(TEMPERATURE), rule=RULE, ranks=True),)
    return tuple(
        MeasuredAcceptance(
            rule=RULE,
            sampling=Sampling(TEMPERATURE),
            table=fields.build("p", AcceptanceTable, fields.nested_numbers("p")),
            imported=(Imported(what=ACCEPTANCE, source=f"{path.name} ({name})"),),
        )
        for name, fields in tables.items()
    )


def machine_name(machine: Machine) -> str:
    """Return a machine's name for files, such as `nvidia-h200` or `amd-epyc-2-threads`."""
    threads = f" {machine.threads} threads" if machine.device == "cpu" else ""
    return re.sub("[^a-z0-9]+", "-", f"{machine.processor}{threads}".lower()).strip("-")


if __name__ == "__main__":
    main()
