"""`treeopt bench methods`: methods of speculation compared on one machine."""

from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.bench_common import (
    ResultOptions,
    bench_heading,
    check_complete,
    load_bench_models,
    load_decoder_profile,
    repeats_option,
)
from treeopt.cli.command import Command
from treeopt.cli.options.inputs import OTHER_MODELS, file, force_option
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import Heading, group, option
from treeopt.cli.options.values import COUNT, TEMPERATURES, Names
from treeopt.methods.names import NAMES, select_methods
from treeopt.records.bench_file import MethodsBench
from treeopt.records.profile import Profile
from treeopt.report.bench_text import methods_table
from treeopt.report.figures.benches import methods_panels
from treeopt.report.profile_text import measured_today
from treeopt.report.text import models_and_machine
from treeopt.texts.prompts import bench_prompts, profile_prompts

DEFAULT_TEMPERATURES = (0.0, 0.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMethodsOptions:
    methods: str = option(
        "--methods",
        type=Names("names", lambda: ("all", *NAMES)),
        default="all",
        help="Methods to compare, separated by commas; plain decoding is always included.",
    )
    pair: PairOptions = group(PairOptions)
    prompts: PromptOptions = group(PromptOptions)
    profile_path: Path | None = option(
        "--profile",
        type=file,
        help="Profile to plan from; by default the pair is profiled first. Drafters that it lacks are measured.",
    )
    force: bool = force_option(OTHER_MODELS, heading=Heading.MODELS)
    temperatures: tuple[float, ...] | None = Heading.MEASURED.option(
        "--temperature",
        type=TEMPERATURES,
        help="Temperatures, separated by commas; by default 0,0.6, or all in --profile.",
    )
    max_new_tokens: int = Heading.MEASURED.option(
        "--max-new-tokens", type=COUNT, default=192, help="New tokens per held-out prompt."
    )
    repeats: int = repeats_option(2)
    results: ResultOptions = group(ResultOptions)

    def __post_init__(self) -> None:
        if self.force and self.profile_path is None:
            raise click.UsageError(
                "--force: expected --profile, whose models it overrides. Add it, or leave --force out."
            )


@click.command("methods", cls=Command, record=BenchMethodsOptions)
def bench_methods(args: BenchMethodsOptions) -> None:
    """Compare methods of speculation on the same pair and prompts.

    Each method is profiled, planned and decoded with, under its own lossless rule: plain, prompt-lookup, chain, osd,
    k-sequences, top-k-tree, medusa, dflash, dspark, ddtree, redrafter, eagle, p-eagle, lookahead, specexec, eagle2,
    sequoia, treeopt.  Those that cannot run on the pair are listed with the reason.
    """
    names = [name.strip() for name in args.methods.split(",")]
    select_methods(names)
    profile = None if args.profile_path is None else load_decoder_profile(args.profile_path)
    models = load_bench_models(args.pair, args.profile_path, profile, force=args.force)
    from treeopt.methods.running import completed_rounds, run_methods
    from treeopt.profiler.bench.compare import Workload

    prompts = args.prompts.load(models)
    workload = Workload(prompts=bench_prompts(prompts), max_new_tokens=args.max_new_tokens, repeats=args.repeats)
    rows = run_methods(
        models,
        profile_prompts(prompts),
        workload,
        names=names,
        temperatures=args.temperatures or default_temperatures(profile),
        profile=profile,
        announce=lambda line: click.echo(line, err=True),
    )
    heading = bench_heading(models)
    bench = MethodsBench.of(rows)
    args.results.publish(
        methods_table(bench),
        heading,
        bench,
        methods_panels(bench),
        title=models_and_machine(models.described, heading.machine),
        subtitle=measured_today(),
    )
    check_complete(completed_rounds(rows), workload.rounds)


def default_temperatures(profile: Profile | None) -> tuple[float, ...]:
    """Return the temperatures of a profile; for a target alone, those of its drafters or 0."""
    if profile is None:
        return DEFAULT_TEMPERATURES
    acceptances = profile.acceptances_of(rule=None, temperature=None)
    return tuple(dict.fromkeys(acceptance.temperature for acceptance in acceptances))
