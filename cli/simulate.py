"""`treeopt simulate`: what a server will do under a load, before it serves."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.bench_engine import default_length
from treeopt.cli.command import Command
from treeopt.cli.identity import identity_of
from treeopt.cli.options.inputs import PROFILE_PATH, load_profile, output_file
from treeopt.cli.options.plan import CATEGORY, PROFILE_TEMPERATURE
from treeopt.cli.options.record import Heading, option, options
from treeopt.cli.options.rule import LOSSY, measured_rule
from treeopt.cli.options.values import COUNT, DURATION, MOST, SEED, CommaList
from treeopt.cli.plan_profile import profile_for_category
from treeopt.cli.terminal import warn
from treeopt.cli.waiting import patience
from treeopt.errors import Warning
from treeopt.files.picture_file import checked_suffix
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import Profile
    from treeopt.report.simulation import LargestRate
    from treeopt.simulation.arrivals import Load
    from treeopt.simulation.outcome import Outcome
    from treeopt.simulation.settings import ServedSetting
    from treeopt.simulation.simulate import Deployment, Limits
    from treeopt.simulation.step_times import StepTimes

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/(s|min|h))?", re.ASCII)
_PER_SECOND = {None: 1.0, "s": 1.0, "min": 1 / 60, "h": 1 / 3600}
AROUND = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""What the picture shows beside a single rate, as multiples of it."""


def _rate(text: str) -> float:
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(text)
    return float(match[1]) * _PER_SECOND[match[2]]


class LengthRange(click.ParamType[tuple[int, int]]):
    """A number of tokens, or a range such as `32-128`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the smallest and the largest; a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(value), re.ASCII)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= MOST:
            self.fail(f"expected a number of tokens, or a range such as 32-128. Got {value!r}.", param, ctx)
        return low, high


TOKENS = LengthRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """Under which load, of what, and what to write."""

    profile_path: Path = field(metadata=PROFILE_PATH)
    rates: tuple[float, ...] = field(
        metadata=option(
            "--rate",
            "rates",
            type=CommaList("rates above 0", _rate, "4/s,90/min"),
            required=True,
            help="Requests that arrive, such as 4/s or 90/min; several with commas.",
        )
    )
    prompt_tokens: tuple[int, int] = field(
        metadata=option("--prompt-tokens", type=TOKENS, required=True, help="Length of prompts, or a range, 32-128.")
    )
    new_tokens: tuple[int, int] = field(
        metadata=option("--new-tokens", type=TOKENS, required=True, help="Length of outputs, or a range, 32-128.")
    )
    replicas: int = field(
        metadata=option("--replicas", type=COUNT, default=1, show_default=True, help="Servers that share the requests.")
    )
    most_texts: int | None = field(
        metadata=option("--most-texts", type=COUNT, help="Largest batch of a server; by default the largest measured.")
    )
    prompt_s: float | None = field(
        metadata=option(
            "--prompt-time",
            "prompt_s",
            type=DURATION,
            help="Prefill time of any prompt; by default as measured, by its length.",
        )
    )
    first_token_s: float | None = field(
        metadata=option(
            "--first-token-within",
            "first_token_s",
            type=DURATION,
            help="Find the largest rate at which 99 of 100 requests have their first token within this time.",
        )
    )
    token_s: float | None = field(
        metadata=option(
            "--token-within",
            "token_s",
            type=DURATION,
            help="Find the largest rate at which 99 of 100 requests have a token in this time, on average.",
        )
    )
    rule: str | None = field(metadata=measured_rule("Verification rule; by default the first in the profile."))
    lossy: bool = field(metadata=LOSSY)
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    category: str | None = field(metadata=CATEGORY)
    budget: int | None = field(
        metadata=option("--budget", type=COUNT, help="Most nodes of trees, root included; by default all measured.")
    )
    duration_s: float = field(
        metadata=option(
            "--duration",
            "duration_s",
            type=DURATION,
            default=60.0,
            show_default="60s",
            help="How long requests arrive.",
        )
    )
    seed: int = field(metadata=option("--seed", type=SEED, default=0, show_default=True, help="Of all draws."))
    plot: Path | None = field(
        metadata=option(
            "--plot",
            heading=Heading.OUTPUT,
            type=output_file,
            help="Picture over rates to write too: .svg, .png or .pdf.",
        )
    )
    as_json: bool = field(
        metadata=option(
            "--json",
            "as_json",
            heading=Heading.OUTPUT,
            is_flag=True,
            help="Print everything as one JSON object instead of the tables.",
        )
    )

    @property
    def load(self) -> "Load":
        """The load at the largest rate."""
        from treeopt.simulation.arrivals import Load

        return Load(
            rate_per_s=max(self.rates),
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            duration_s=self.duration_s,
            seed=self.seed,
        )

    @property
    def limits(self) -> "Limits":
        """The latencies to keep."""
        from treeopt.simulation.simulate import Limits

        return Limits(first_token_s=self.first_token_s, token_s=self.token_s)

    @property
    def request(self) -> "PlanRequest":
        """What the planner is asked for."""
        from treeopt.planner import PlanRequest

        return PlanRequest(rule=self.rule, temperature=self.temperature, max_nodes=self.budget, lossy=self.lossy)


@click.command(cls=Command)
@options(SimulateOptions)
def simulate(asked: SimulateOptions) -> None:
    """Predict what a server does under a load: tokens per second and waiting times, setting by setting.

    Requests arrive at random and meet the measured times and accepted ranks of a profile, of treeopt's decoder or of an
    engine that was probed.  Plain decoding, the engine's default, every fixed length and the schedule get the same ones.
    """
    if asked.plot is not None:
        checked_suffix(asked.plot)
    from treeopt.records.profile import check_draft_model
    from treeopt.report.simulation import Simulation, simulation_json, simulation_text
    from treeopt.simulation.settings import served_settings
    from treeopt.simulation.simulate import Deployment
    from treeopt.simulation.step_times import StepTimes

    profile = profile_for_category(load_profile(asked.profile_path), asked.category)
    check_draft_model(profile, "simulate")
    acceptance = profile.acceptance(rule=asked.rule, temperature=asked.temperature)
    times = StepTimes(profile, acceptance, asked.prompt_s)
    servers = Deployment(times=times, replicas=asked.replicas, batch_size=asked.most_texts or times.max_batch_size)
    default = default_length(profile.engine.name) if profile.engine is not None else None
    with patience("solving"):
        settings = served_settings(times, asked.request, default, new_tokens=asked.load.mean_new_tokens)
    rates = sorted(asked.rates)
    limited = len(settings) if asked.limits.any else 0
    with patience("simulating", unit="setting", total=len(settings) * len(rates) + limited) as tick:
        simulation = Simulation(
            load=asked.load,
            replicas=servers.replicas,
            most_texts=servers.batch_size,
            outcomes=_at_rates(servers, settings, asked.load, rates, tick),
            limits=asked.limits,
            largest_rates=_largest_rates(servers, settings, asked, tick) if limited else (),
        )
    click.echo(simulation_json(simulation) if asked.as_json else simulation_text(simulation) + _next(asked, times))
    if asked.plot is not None:
        outcomes = simulation.outcomes
        if len(rates) == 1:
            with patience("drawing", total=1):
                outcomes = _at_rates(servers, settings, asked.load, [share * rates[0] for share in AROUND])
        _draw(asked.plot, profile, outcomes, simulation_text(simulation).partition("\n")[0])
    _warn(asked, times)


def _at_rates(
    servers: "Deployment",
    settings: "Sequence[ServedSetting]",
    load: "Load",
    rates: Sequence[float],
    tick: Callable[[], object] = lambda: None,
) -> "tuple[Outcome, ...]":
    outcomes = []
    for rate in rates:
        for setting in settings:
            outcomes.append(servers.simulate(setting, replace(load, rate_per_s=rate)))
            tick()
    return tuple(outcomes)


def _largest_rates(
    servers: "Deployment", settings: "Sequence[ServedSetting]", asked: SimulateOptions, tick: Callable[[], object]
) -> "tuple[LargestRate, ...]":
    from treeopt.report.simulation import LargestRate

    largest = []
    for setting in settings:
        rate = servers.largest_rate(setting, asked.load, asked.limits)
        largest.append(LargestRate(name=setting.name, rate_per_s=rate))
        tick()
    return tuple(largest)


def _draw(path: Path, profile: "Profile", outcomes: "tuple[Outcome, ...]", served: str) -> None:
    from treeopt.files.picture_file import save_drawing
    from treeopt.pictures.panels import compose
    from treeopt.report.figures.loads import load_panels
    from treeopt.report.plan_text import models_and_machine
    from treeopt.report.profile_words import under

    title, subtitle = models_and_machine(profile.pair, profile.machine), f"simulated: {served}; {under(profile)}"
    save_drawing(compose(load_panels(outcomes), title=title, subtitle=subtitle, columns=2), path)
    click.echo(f"Written to {path}", err=True)


def _next(asked: SimulateOptions, times: "StepTimes") -> str:
    """Return the command that writes the schedule, where there is one to write."""
    from treeopt.planner.new_tokens import ranks_along_texts

    profile, acceptance = times.profile, times.acceptance
    at_context = [each for each in profile.step_latencies if each.context_tokens == times.planned_context]
    if profile.engine is not None or len({each.batch_size for each in at_context}) == 1:
        return ""
    options = [f"--profile {quoted(asked.profile_path)}", f"--rule {acceptance.rule}"]
    options += [f"--temperature {acceptance.temperature:g}", f"--context-tokens {times.planned_context}"]
    options += [] if asked.budget is None else [f"--budget {asked.budget}"]
    options += [f"--new-tokens {asked.load.mean_new_tokens}"] if ranks_along_texts(acceptance) is not None else []
    options += [] if asked.category is None else [f"--category {quoted(asked.category)}"]
    options += ["--lossy"] if asked.lossy else []
    return f"\n\nNext: treeopt schedule {' '.join(options)}"


def _warn(asked: SimulateOptions, times: "StepTimes") -> None:
    longest = times.longest_prompt
    if longest is None and times.prompt_s is None:
        warn(
            Warning(
                "the profile has no prefill times, so times to the first token are waiting alone.",
                "Give the seconds of a prompt with --prompt-time.",
            )
        )
    if longest is not None and longest < asked.prompt_tokens[1]:
        warn(
            Warning(
                f"prefill was timed for prompts of up to {longest} tokens; longer ones are extrapolated.",
                f"Measure longer ones: {_measuring(times.profile)} --prompts FILE.",
            )
        )
    if times.max_batch_size == 1:
        warn(
            Warning(
                "the profile has times of batch size 1 only, so servers decode one sequence after the other.",
                f"Measure more: {_measuring(times.profile)} --batch-sizes 1,2,4,8.",
            )
        )


def _measuring(profile: "Profile") -> str:
    """Return the command that measured a pair, or an engine with its models."""
    models = identity_of(profile).models
    if profile.engine is None:
        return f"treeopt profile{models}"
    return f"treeopt probe {profile.engine.name}{models or ' --url URLS'}"
