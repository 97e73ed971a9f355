"""Measure the profiles of docs/profiles on this machine: models of random weights, with published acceptance.

On a GPU, from the source tree:

    PYTHONPATH=. python tools/gallery.py --acceptance acceptance.json

Targets, drafts, contexts and number format are by default those that the device can bear.  Every pair is written as
soon as it is measured.
"""

import argparse
import re
import shlex
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from gallery_shapes import SHAPES, random_model

from treeopt.engines.importers import read_acceptance
from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json
from treeopt.files.whole_files import read_text
from treeopt.profiler import Journal, Settings, clock_for
from treeopt.profiler.budget import Slice
from treeopt.profiler.latency.condition import Times
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.memory import give_back_memory
from treeopt.profiler.machine import describe_machine, describe_pair, now
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Machine
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported, StepLatency
from treeopt.runtime import Transformer
from treeopt.version import TOOL

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "profiles"
WAYS = {"graphs": True, "eager": False}
RULE = "sequoia"
"""What published vectors by rank are of."""
MAX_BYTES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What is measured on a kind of device unless something else is asked for."""

    targets: tuple[str, ...]
    drafts: tuple[str, ...]
    context_tokens: tuple[int, ...]
    max_tokens: int
    dtype: str
    ways: tuple[str, ...]


ON_CUDA = Defaults(
    targets=("1b", "7b", "13b"),
    drafts=("68m", "160m"),
    context_tokens=(256, 4096),
    max_tokens=512,
    dtype="bfloat16",
    ways=tuple(WAYS),
)
ON_CPU = Defaults(
    targets=("110m",),
    drafts=("30m",),
    context_tokens=(256, 1024),
    max_tokens=256,
    dtype="float32",
    ways=("eager",),
)


def main(arguments: list[str] | None = None) -> None:
    """Measure every pair in every way."""
    given = sys.argv[1:] if arguments is None else arguments
    measure_all(parsed(given), command=shlex.join(["python", "tools/gallery.py", *given]))


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options, those left out filled in for the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--targets", nargs="+", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--drafts", nargs="+", choices=SHAPES, metavar="SHAPE")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="passes as CUDA graphs, or launched one by one")
    parser.add_argument("--context-tokens", nargs="+", type=int, metavar="TOKENS")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1], metavar="TEXTS")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float, default=0.6, help="of the timed steps and of the acceptance")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--time-budget", type=float, metavar="S", help="timed seconds of each pair, in place of --rounds"
    )
    parser.add_argument(
        "--acceptance", type=Path, metavar="FILE", required=True, help="one table, or a JSON object of several"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where profiles are written")
    options = parser.parse_args(arguments)
    defaults = ON_CUDA if options.device.startswith("cuda") else ON_CPU
    for name, value in asdict(defaults).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def measure_all(options: argparse.Namespace, *, command: str) -> None:
    """Measure and write every pair in every way, a target loaded once."""
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    tables = acceptances(options.acceptance, temperature=options.temperature)
    for target_shape in options.targets:
        target = random_model(target_shape, dtype=dtype, device=device)
        for draft_shape, way in product(options.drafts, options.ways):
            draft = random_model(draft_shape, dtype=dtype, device=device, seed=1)
            profile = Profile(
                created=now(),
                tool=f"{TOOL}, by {command}",
                machine=describe_machine(device),
                pair=describe_pair(target, draft),
                latencies=times(target, draft, settings(options, way), options.time_budget),
                acceptances=tables,
            )
            names = machine_name(profile.machine), target_shape, draft_shape, options.dtype, way
            path = options.folder / f"{'-'.join(names)}.yaml"
            profile.save(path)
            print(f"Written to {path}", file=sys.stderr)
        del target, draft
        give_back_memory()


def settings(options: argparse.Namespace, way: str) -> Settings:
    """Return what is timed of each pair."""
    return Settings(
        samplings=(Sampling(options.temperature),),
        context_tokens=tuple(options.context_tokens),
        batch_sizes=tuple(options.batch_sizes),
        max_tokens=options.max_tokens,
        rounds=options.rounds,
        cuda_graphs=WAYS[way],
    )


def times(
    target: Transformer, draft: Transformer, settings: Settings, budget_s: float | None
) -> tuple[StepLatency, ...]:
    """Return the times of a pair under every condition, behind a text of all tokens in turn."""
    text = range(target.config.vocabulary)
    clock = clock_for(target.device)
    grid = LatencyGrid(target, draft, text, settings, clock=clock, journal=Journal(None, ""))
    if budget_s is None:
        return grid.measure(lambda: None)
    condition_s = budget_s / grid.conditions

    def measure(each: Times) -> None:
        seconds = Slice(time.monotonic, time.monotonic() + condition_s)
        each.coarse(lambda _: nullcontext(), seconds.part(1 / 3))
        each.sample(seconds)

    return tuple(each.latency() for each in grid.each_fitting(measure, lambda: None).values())


def acceptances(path: Path, *, temperature: float) -> tuple[MeasuredAcceptance, ...]:
    """Return the acceptance of a file, or each of a JSON object of several with their names, all by rank.

    Raises FormatError naming what is wrong.
    """
    content = parse_json(path, read_text(path, limit_bytes=MAX_BYTES)) if path.suffix == ".json" else None
    inner = content.items() if isinstance(content, dict) else ()
    named = {name: Fields(path, value, name) for name, value in inner if isinstance(value, dict) and "p" in value}
    if not named:
        return (read_acceptance(path, temperature=temperature, rule=RULE, kind="ranks"),)
    return tuple(
        MeasuredAcceptance(
            rule=RULE,
            temperature=temperature,
            top_p=1.0,
            prompts=None,
            positions=None,
            table=fields.build("p", AcceptanceTable, fields.nested_numbers("p")),
            imported=(Imported(what=ACCEPTANCE, source=f"{path.name} ({name})"),),
        )
        for name, fields in named.items()
    )


def machine_name(machine: Machine) -> str:
    """Return a machine's name for files.

    An `NVIDIA H200` is `nvidia-h200`, and an `AMD EPYC` with two threads `amd-epyc-2-threads`.
    """
    threads = f" {machine.threads} threads" if machine.device == "cpu" else ""
    return re.sub("[^a-z0-9]+", "-", f"{machine.processor}{threads}".lower()).strip("-")


if __name__ == "__main__":
    main()
