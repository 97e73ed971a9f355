"""`treeopt simulate`: throughput and latency of a server under load, predicted from a profile."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import json_option, load_profile, plot_option, profile_option
from treeopt.cli.options.plan import budget_option, category_option, temperature_option
from treeopt.cli.options.record import option
from treeopt.cli.options.sampling import lossy_option, measured_rule_option
from treeopt.cli.options.values import COUNT, DURATION, MAX_COUNT, SEED, Parsed, comma_list
from treeopt.cli.plan_profile import select_category
from treeopt.cli.terminal import progress, warn
from treeopt.engines import default_length
from treeopt.errors import InfeasibleError, Warning
from treeopt.files.figure_file import write_figure
from treeopt.planner import PlanRequest
from treeopt.planner.subsets import check_new_tokens, for_sequences
from treeopt.planner.unmeasured import unmeasured_warnings
from treeopt.records.profile import Profile, require_draft_model
from treeopt.report.commands import planning_options, profile_command
from treeopt.report.profile_text import describe_conditions
from treeopt.report.simulation import LargestRate, Simulation, simulation_json, simulation_text
from treeopt.report.text import models_and_machine, quoted
from treeopt.simulation.arrivals import Load
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.settings import ServedSetting, served_settings
from treeopt.simulation.simulate import Deployment, Limits
from treeopt.simulation.step_times import StepTimes

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/(s|min|h))?", re.ASCII)
_PER_SECOND = {None: 1.0, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}
PLOTTED_RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Rates in the figure if one is given, as multiples of it."""


def _parse_rate(text: str) -> float:
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(text)
    return float(match[1]) * _PER_SECOND[match[2]]


def _parse_range(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of a range such as `32-128`, or of one number."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MAX_COUNT:
        raise ValueError(text)
    return low, high


LENGTH_RANGE = Parsed("tokens", "a number of tokens, or a range such as 32-128", _parse_range)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    profile_path: Path = profile_option()
    rates: tuple[float, ...] = option(
        "--rate",
        type=comma_list("rates above 0", _parse_rate, "4/s,90/min"),
        required=True,
        metavar="RATES",
        help="Arrival rate of requests, such as 4/s or 90/min. Separate several with commas.",
    )
    prompt_tokens: tuple[int, int] = option(
        "--prompt-tokens", type=LENGTH_RANGE, required=True, help="Length of prompts, or a range such as 32-128."
    )
    new_tokens: tuple[int, int] = option(
        "--new-tokens", type=LENGTH_RANGE, required=True, help="Length of outputs, or a range such as 32-128."
    )
    replicas: int = option("--replicas", type=COUNT, default=1, help="Number of servers that share the requests.")
    max_batch_size: int | None = option(
        "--max-batch-size", type=COUNT, help="Largest batch of a server; by default the largest measured."
    )
    prompt_s: float | None = option(
        "--prompt-time",
        type=DURATION,
        help="Prefill time of every prompt; by default the measured time for its length.",
    )
    first_token_s: float | None = option(
        "--first-token-within",
        type=DURATION,
        help="Find the largest rate at which 99 % of requests get their first token within this time.",
    )
    token_s: float | None = option(
        "--token-within",
        type=DURATION,
        help="Find the largest rate at which 99 % of requests take at most this time per token, on average.",
    )
    rule: str | None = measured_rule_option("Verification rule; by default the first lossless one in the profile.")
    lossy: bool = lossy_option()
    temperature: float | None = temperature_option()
    category: str | None = category_option()
    max_nodes: int | None = budget_option()
    duration_s: float = option("--duration", type=DURATION, default="60s", help="Time during which requests arrive.")
    seed: int = option("--seed", type=SEED, default=0, help="Random seed.")
    plot: Path | None = plot_option()
    as_json: bool = json_option()

    @property
    def load(self) -> Load:
        """The load at the largest rate."""
        return Load(
            rate_per_s=max(self.rates),
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            duration_s=self.duration_s,
            seed=self.seed,
        )


@click.command(cls=Command, record=SimulateOptions)
def simulate(args: SimulateOptions) -> None:
    """Predict throughput and latency of a server under load.

    Simulates requests that arrive at random, with the times and acceptance of a profile of treeopt's decoder or of a
    probed engine.  Compares plain decoding, the engine's default, every fixed draft length and the schedule on the same
    requests.
    """
    measured = load_profile(args.profile_path)
    profile = select_category(measured, args.category)
    require_draft_model(profile, "simulate")
    acceptance = profile.acceptance(rule=args.rule, temperature=args.temperature)
    times = StepTimes(profile, acceptance, args.prompt_s, args.load.mean_context_tokens)
    batch_size = args.max_batch_size or times.max_batch_size
    deployment = Deployment(times=times, replicas=args.replicas, batch_size=batch_size)
    default = default_length(profile.engine.name) if profile.engine is not None else None
    request = PlanRequest(rule=args.rule, temperature=args.temperature, max_nodes=args.max_nodes, lossy=args.lossy)
    with progress("solving"):
        planned = for_sequences(measured, category=args.category, new_tokens=args.load.mean_new_tokens)
        settings = served_settings(times, request, default, profile=planned)
    rates = sorted(args.rates)
    limits = Limits(first_token_s=args.first_token_s, token_s=args.token_s)
    runs = len(settings) * (len(rates) + limits.any)
    with progress("simulating", unit="setting", total=runs) as tick:
        simulation = Simulation(
            load=args.load,
            replicas=deployment.replicas,
            batch_size_limit=deployment.batch_size,
            outcomes=_simulate_rates(deployment, settings, args.load, rates, tick),
            limits=limits,
            largest_rates=_find_largest_rates(deployment, settings, args.load, limits, tick) if limits.any else (),
        )
    text, warnings = simulation_text(simulation), list(_warnings(args, times, request))
    if args.as_json:
        click.echo(simulation_json(simulation, times, warnings))
    else:
        click.echo(text + _next_command(args, times))
    if args.plot is not None:
        outcomes = simulation.outcomes
        if len(rates) == 1:
            with progress("drawing"):
                plotted = sorted({min(multiple * rates[0], args.load.max_rate_per_s) for multiple in PLOTTED_RATES})
                outcomes = _simulate_rates(deployment, settings, args.load, plotted)
        _save_plot(args.plot, profile, outcomes, text.partition("\n")[0])
    for warning in warnings:
        warn(warning)


def _simulate_rates(
    deployment: Deployment,
    settings: Sequence[ServedSetting],
    load: Load,
    rates: Sequence[float],
    tick: Callable[[], object] = lambda: None,
) -> tuple[Outcome, ...]:
    outcomes = []
    for rate in rates:
        for setting in settings:
            outcomes.append(deployment.simulate(setting, replace(load, rate_per_s=rate)))
            tick()
    return tuple(outcomes)


def _find_largest_rates(
    deployment: Deployment, settings: Sequence[ServedSetting], load: Load, limits: Limits, tick: Callable[[], object]
) -> tuple[LargestRate, ...]:
    largest = []
    for setting in settings:
        rate_per_s = deployment.largest_rate(setting, load, limits)
        largest.append(LargestRate(name=setting.name, rate_per_s=rate_per_s))
        tick()
    return tuple(largest)


def _save_plot(path: Path, profile: Profile, outcomes: tuple[Outcome, ...], load_text: str) -> None:
    from treeopt.plotting.panels import compose
    from treeopt.report.figures.loads import load_panels

    title = models_and_machine(profile.pair, profile.machine)
    subtitle = f"simulated: {load_text}; {describe_conditions(profile)}"
    write_figure(compose(load_panels(outcomes), title=title, subtitle=subtitle, columns=2), path)
    click.echo(f"Written to {path}", err=True)


def _next_command(args: SimulateOptions, times: StepTimes) -> str:
    """Return the command that writes the schedule, or nothing if only one batch size was measured."""
    profile, acceptance = times.profile, times.acceptance
    batch_sizes = {
        latency.batch_size for latency in profile.step_latencies if latency.context_tokens == times.planned_context
    }
    if profile.engine is not None or len(batch_sizes) == 1:
        return ""
    request = PlanRequest(
        rule=acceptance.rule,
        temperature=acceptance.temperature,
        context_tokens=times.planned_context,
        max_nodes=args.max_nodes,
        lossy=args.lossy,
    )
    options = planning_options(request)
    with suppress(InfeasibleError):  # the profile does not contain acceptance by length
        check_new_tokens(profile, request, args.load.mean_new_tokens)
        options += f" --new-tokens {args.load.mean_new_tokens}"
    if args.category is not None:
        options += f" --category {quoted(args.category)}"
    return f"\n\nNext: treeopt schedule --profile {quoted(args.profile_path)}{options}"


def _warnings(args: SimulateOptions, times: StepTimes, request: PlanRequest) -> Iterator[Warning]:
    longest, measure = times.longest_prompt, profile_command(times.profile)
    yield from unmeasured_warnings(request, times.limiting_point, times.acceptance.table)
    if longest is None and times.prompt_s is None:
        yield Warning(
            "the profile has no prefill times, so times to the first token are waiting alone.",
            "Give the seconds of a prompt with --prompt-time.",
        )
    if longest is not None and longest < args.prompt_tokens[1]:
        yield Warning(
            f"prefill was timed for prompts of up to {longest} tokens; longer ones are extrapolated.",
            f"Measure longer ones: {measure} --prompts FILE." if measure else "Import times of longer ones.",
        )
    if times.longest_context < args.load.prompt_tokens[1] + args.load.new_tokens[1]:
        yield Warning(
            f"steps were timed up to {times.longest_context} tokens of context; longer sequences take as long a step.",
            f"Measure longer ones: {measure} --context-tokens." if measure else "Import times of longer contexts.",
        )
    if times.max_batch_size == 1:
        yield Warning(
            "the profile has times of batch size 1 only, so servers decode one sequence after the other.",
            f"Measure more: {measure} --batch-sizes 1,2,4,8." if measure else "Import times of larger batches.",
        )
