"""Profiles of machines that do not exist, so that every number of a plan is known, and runs of the command line."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.testing import CliRunner, Result

from treeopt.cli.main import main
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import StepLatency

COUNTS = (1, 2, 4, 8, 12, 16, 24, 32)
TABLE = AcceptanceTable([[0.7, 0.15, 0.05], [0.65, 0.15, 0.05], [0.6, 0.15, 0.05], [0.5, 0.1, 0.05]])
NOISY = AcceptanceTable([[0.6, 0.1, 0.11], [0.6, 0.1, 0.11]], standard_error=np.full((2, 3), 0.02))
"""Ranks rise, but by less than noise explains."""
STEEP = AcceptanceTable([[0.84, 0.05]] * 4)
"""Accepts less beside the first child and more below it than TABLE does."""
FOUR_CONDITIONS = [(context, batch) for batch in (1, 16) for context in (256, 4096)]
SAMPLES = 15


def leaf_commands(group: click.Group = main) -> dict[str, click.Command]:
    """Return all commands without subcommands by their names, such as `bench tree`."""
    context = click.Context(group)
    leaves: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            leaves |= {f"{name} {leaf}": leaf_command for leaf, leaf_command in leaf_commands(command).items()}
        elif command is not None:
            leaves[name] = command
    return leaves


def call(*arguments: object) -> Result:
    """Run the command line as a user types it."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    """Run a command line that has to succeed."""
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object, code: int = 1) -> str:
    """Return the only error line of a command line that has to fail, without output and without a changed file."""
    before = _current_files()
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert "Traceback" not in result.stderr
    assert _current_files() == before
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def warnings_of(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]


def _current_files() -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything in the current folder, by name."""
    return {path.name: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in Path().iterdir()}


def verify_s(tokens: int, context_tokens: int, batch_size: int) -> float:
    """Return the seconds of a pass of a machine with much idle arithmetic."""
    return 1e-2 + 2e-6 * context_tokens * batch_size + 1e-4 * tokens * batch_size


def draft_s(tokens: int, context_tokens: int, batch_size: int) -> float:
    """Return the seconds of drafting a level with a much smaller model."""
    return 5e-4 + 1e-7 * context_tokens * batch_size + 2e-5 * tokens * batch_size


def invented(
    *,
    conditions: Sequence[tuple[int, int]] = ((256, 1),),
    tables: Sequence[AcceptanceTable] = (TABLE,),
    others: Mapping[str, AcceptanceTable] | None = None,
    verify: Callable[[int, int, int], float] = verify_s,
    draft: Callable[[int, int, int], float] = draft_s,
    overhead_s: float = 2e-4,
    verify_noise: float = 0.0,
    draft_noise: float = 0.0,
    overhead_noise: float = 0.0,
    contexts: Sequence[int | None] = (None,),
) -> Profile:
    """Return a profile of every (context tokens, batch size), with one acceptance per table, 0.2 degrees apart.

    `others` are the tables of further rules, at temperature 0; acceptance is the same at all of `contexts`.
    """
    rng = np.random.default_rng(5)

    def timing(seconds: float, noise: float) -> Timing:
        return Timing(seconds * (1 + noise * rng.uniform(-1, 1, SAMPLES)))

    latencies = [
        StepLatency(
            context_tokens=context,
            batch_size=batch,
            verify=LatencyTable(COUNTS, [timing(verify(n, context, batch), verify_noise) for n in COUNTS]),
            draft=LatencyTable(COUNTS, [timing(draft(n, context, batch), draft_noise) for n in COUNTS]),
            overhead=timing(overhead_s, overhead_noise),
        )
        for context, batch in conditions
    ]
    measured = [("sequoia", 0.2 * i, table) for i, table in enumerate(tables)]
    measured += [(rule, 0.0, table) for rule, table in (others or {}).items()]
    acceptances = [
        MeasuredAcceptance(
            rule=rule, sampling=Sampling(temperature), context_tokens=at, prompts=9, positions=999, table=table
        )
        for rule, temperature, table in measured
        for at in contexts
    ]
    return Profile(
        created="2026-11-20T11:12:00Z",
        tool="test",
        machine=Machine(device="cpu", processor="invented", threads=2, system="none", python="3.12", torch="2.8"),
        pair=Pair(
            target="big", draft="small", dtype="float32", vocabulary=256, target_parameters=9, draft_parameters=1
        ),
        latencies=tuple(latencies),
        acceptances=tuple(acceptances),
    )


def saved(folder: Path, profile: Profile) -> Path:
    """Return the path of a profile file in a folder."""
    path = folder / "profile.yaml"
    profile.save(path)
    return path


def solved(folder: Path, profile: Profile, *arguments: object) -> str:
    """Return the standard output of `treeopt solve`, which may warn of acceptance at one context only."""
    result = succeed("solve", "--profile", saved(folder, profile), *arguments)
    assert all(line.startswith("Warning: acceptance was measured ") for line in result.stderr.splitlines())
    return result.stdout


def solved_json(folder: Path, profile: Profile, *arguments: object) -> dict[str, Any]:
    return dict(json.loads(succeed("solve", "--profile", saved(folder, profile), "--json", *arguments).stdout))
