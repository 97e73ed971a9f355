"""`treeopt bench --systems`: all ways of speculating on one machine, as a table and as JSON."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_pair import heading_here, load_fitting
from treeopt.cli.options.bench import BenchOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.errors import InvalidValueError
from treeopt.report.plan_text import models_and_machine

if TYPE_CHECKING:
    from treeopt.methods.running import Effort
    from treeopt.records.profile import Profile

TEMPERATURES = (0.0, 0.6)
"""Where none is asked for and no profile is named."""


def bench_systems(systems: str, asked: BenchOptions) -> None:
    """Profile, plan and run methods, print the table and write the JSON."""
    names = _names(systems)
    profile = load_profile(asked.profile_path) if asked.profile_named else None
    models = load_fitting(asked, profile)
    from treeopt.methods.running import ContestRequest, run_contest
    from treeopt.report.bench_heading import headed_table
    from treeopt.report.methods_bench import methods_json, methods_table
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = asked.prompts.load(models)
    rows = run_contest(
        models,
        profile_prompts(prompts),
        bench_prompts(prompts),
        ContestRequest(names=names, temperatures=_temperatures(asked, profile), effort=_effort(asked), profile=profile),
        announce=lambda what: click.echo(what, err=True),
    )
    heading = heading_here(models)
    asked.publish(headed_table(heading, methods_table(rows)), methods_json(heading, rows))
    if asked.plot is not None:
        from treeopt.profiler.machine import describe_machine
        from treeopt.report.methods_figure import save_methods_figure
        from treeopt.report.profile_words import raced_today

        machine = describe_machine(models.target.device)
        save_methods_figure(
            rows, asked.plot, title=models_and_machine(models.described, machine), subtitle=raced_today()
        )


def _names(given: str) -> list[str]:
    """Return the names of methods; click.UsageError for one that is none."""
    from treeopt.methods.names import checked_names

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
