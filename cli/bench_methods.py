"""`treeopt bench methods`: all ways of speculating on one machine, as a table and as JSON."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_pair import check_whole, decoder_profile, heading_here, load_fitting
from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchMethodsOptions
from treeopt.cli.options.record import options
from treeopt.errors import InvalidValueError
from treeopt.report.plan_text import models_and_machine

if TYPE_CHECKING:
    from treeopt.records.profile import Profile

TEMPERATURES = (0.0, 0.6)
"""Where none is asked for and no profile is named."""


@click.command("methods", cls=Command)
@options(BenchMethodsOptions)
def bench_methods(asked: BenchMethodsOptions) -> None:
    """Compare methods of speculation on the same pair and prompts.

    Every method is profiled, planned, and decoded with: plain, prompt-lookup, chain, osd, k-sequences, top-k-tree, medusa,
    redrafter, eagle, dflash, lookahead, specexec, eagle2, sequoia, treeopt. Those that cannot run on the pair are listed with the
    reason. Each verifies by its own lossless rule.
    """
    names = _names(asked.methods)
    profile = None if asked.profile_path is None else decoder_profile(asked.profile_path)
    models = load_fitting(asked, profile)
    from treeopt.methods.running import rounds_of, run_methods
    from treeopt.profiler.bench.compare import Workload
    from treeopt.records.bench_file import MethodsBench
    from treeopt.report.bench_heading import headed_table
    from treeopt.report.methods_bench import methods_table
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = asked.prompts.load(models)
    workload = Workload(prompts=bench_prompts(prompts), max_new_tokens=asked.max_new_tokens, repeats=asked.repeats)
    rows = run_methods(
        models,
        profile_prompts(prompts),
        workload,
        names=names,
        temperatures=_temperatures(asked, profile),
        profile=profile,
        announce=lambda what: click.echo(what, err=True),
    )
    heading = heading_here(models)
    bench = MethodsBench.of(rows)
    asked.results.publish(headed_table(heading, methods_table(bench)), heading, bench)
    if asked.results.plot is not None:
        from treeopt.profiler.machine import describe_machine
        from treeopt.report.figures.benches import methods_panels
        from treeopt.report.profile_words import measured_today

        machine = describe_machine(models.target.device)
        title = models_and_machine(models.described, machine)
        asked.results.draw(methods_panels(bench), title=title, subtitle=measured_today(), columns=2)
    check_whole(rounds_of(rows), workload.rounds)


def _names(given: str) -> list[str]:
    """Return the names of methods; click.UsageError for one that is none."""
    from treeopt.methods.names import checked_names

    names = [name.strip() for name in given.split(",")]
    try:
        checked_names(names)
    except InvalidValueError as error:
        raise click.UsageError(f"--{error}") from None
    return names


def _temperatures(asked: BenchMethodsOptions, profile: "Profile | None") -> tuple[float, ...]:
    """Return the temperatures asked for, or all of the profile, or the two that show what sampling changes."""
    if asked.temperatures or profile is None:
        return asked.temperatures or TEMPERATURES
    return tuple(dict.fromkeys(acceptance.temperature for acceptance in profile.acceptances))
