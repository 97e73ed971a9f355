"""`treeopt bench --systems`: all ways of speculating on one machine, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_options import BenchOptions, load_fitting
from treeopt.cli.options import load_profile
from treeopt.cli.outputs import TOOL
from treeopt.cli.plan_text import models_and_machine
from treeopt.cli.text import milliseconds
from treeopt.errors import InvalidValueError

if TYPE_CHECKING:
    from treeopt.methods.bench import Row
    from treeopt.methods.method import NotRun
    from treeopt.methods.running import Effort
    from treeopt.records.profile import Profile

TEMPERATURES = (0.0, 0.6)
"""Where none is asked for and no profile is named."""


def bench_systems(systems: str, asked: BenchOptions) -> None:
    """Profile, plan and run systems, print the table and write the JSON."""
    names = _names(systems)
    profile = load_profile(asked.profile_path) if asked.profile_named else None
    models = load_fitting(asked, profile)
    from treeopt.methods.running import run_contest
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = asked.prompts.load(models.tokenizer)
    rows = run_contest(
        models,
        profile_prompts(prompts),
        bench_prompts(prompts),
        names=names,
        temperatures=_temperatures(asked, profile),
        effort=_effort(asked),
        profile=profile,
        announce=lambda what: click.echo(what, err=True),
    )
    asked.publish(table(rows), report(rows))
    if asked.plot is not None:
        from treeopt.methods.figure import save_systems_figure
        from treeopt.profiler.machine import describe_machine

        machine = describe_machine(models.target.device)
        save_systems_figure(rows, asked.plot, title=models_and_machine(models.described, machine))


def _names(given: str) -> list[str]:
    """Return the names of systems; click.UsageError for one that is none."""
    from treeopt.methods.contest import checked_names

    names = [name.strip() for name in given.split(",")]
    try:
        checked_names(names)
    except InvalidValueError as error:
        raise click.UsageError(f"--{error}") from None
    return names


def _temperatures(asked: BenchOptions, profile: "Profile | None") -> tuple[float, ...]:
    """Return the temperatures asked for, or all of the profile, or the two that show what sampling changes."""
    if asked.temperatures or profile is None:
        return asked.temperatures or TEMPERATURES
    return tuple(dict.fromkeys(acceptance.temperature for acceptance in profile.acceptances))


def _effort(asked: BenchOptions) -> "Effort":
    from treeopt.methods.running import Effort

    effort = Effort()
    return replace(
        effort,
        bench_tokens=asked.max_new_tokens or effort.bench_tokens,
        repeats=asked.repeats or effort.repeats,
    )


def report(rows: "Sequence[Row | NotRun]") -> str:
    """Return the rows as one JSON object, a row a line; seconds and tokens; of a system that did not run, the reason."""
    lines = ",\n".join(f"    {json.dumps(asdict(row), allow_nan=False)}" for row in rows)
    return f'{{\n  "tool": {json.dumps(TOOL)},\n  "rows": [\n{lines}\n  ]\n}}\n'


def table(rows: "Sequence[Row | NotRun]") -> str:
    """Return one line per system, temperature by temperature, and below them what predictions assume."""
    from treeopt.methods.bench import Row

    blocks = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        chosen = [row for row in rows if row.temperature == temperature]
        ran = [row for row in chosen if isinstance(row, Row)]
        width = max(len(row.setting) for row in ran)
        lines = [
            f"temperature {temperature:g}",
            "",
            (
                f"{'system':<14}{'rule':<10}{'setting':<{width}}{'tokens':>8}{'step':>8}{'draft':>8}{'verify':>8}{'rest':>7}"
                f"{'tokens':>8}{'speedup':>9}{'predicted':>10}  lossless"
            ),
            f"{'':<24}{'':<{width}}{'/step':>8}{'ms':>8}{'ms':>8}{'ms':>8}{'ms':>7}{'/s':>8}",
        ]
        lines += [
            _line(row, width) if isinstance(row, Row) else f"{row.system:<14}not run: {row.reason}" for row in chosen
        ]
        blocks.append("\n".join(line.rstrip() for line in lines))
        blocks += _assumptions(ran)
    return "\n\n".join(blocks)


def _assumptions(rows: "Sequence[Row]") -> list[str]:
    """Return in one paragraph what predictions rest on beside measurements, none where there is nothing."""
    said = dict.fromkeys(each for row in rows for each in row.assumed)
    lines = [f"  {', '.join(row.system for row in rows if each in row.assumed)}: {each}" for each in said]
    return ["\n".join(["assumed, not measured, in what is predicted:", *lines])] if lines else []


def _line(row: "Row", width: int) -> str:
    times = [milliseconds(each) if each > 0 else "0" for each in (row.step_s, row.draft_s, row.verify_s, row.rest_s)]
    step, draft, verify, rest = times
    return (
        f"{row.system:<14}{row.rule:<10}{row.setting:<{width}}{row.tokens_per_step:>8.2f}{step:>8}{draft:>8}{verify:>8}"
        f"{rest:>7}{row.tokens_per_s:>8.0f}{row.speedup:>9.2f}{row.predicted_speedup:>10.2f}"
        f"  {'yes' if row.lossless else 'NO'} ({row.evidence})"
    )
