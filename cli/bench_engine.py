"""`treeopt bench engine`: draft lengths of a serving engine, measured next to their predictions."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_common import ResultOptions, repeats_option
from treeopt.cli.command import Command
from treeopt.cli.options.engine import (
    PROBED_ENGINE,
    EngineOptions,
    ServerOptions,
    chat_template_option,
    max_new_tokens_option,
    together_option,
)
from treeopt.cli.options.inputs import load_profile, profile_option
from treeopt.cli.options.plan import temperature_option
from treeopt.cli.options.prompts import apply_chat_template, max_prompts_option, prompts_option, select_prompts
from treeopt.cli.options.record import Heading, argument, group, refuse_options
from treeopt.cli.options.values import LENGTHS, Parsed, parse_number
from treeopt.cli.terminal import warn
from treeopt.engines import default_length
from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.engines.clients.registry import PLACED, is_single_url, parse_urls
from treeopt.planner import PlanRequest, StepModel, step_model
from treeopt.planner.segments import fastest_length
from treeopt.records.identity import Identity, machine_mismatch_warning, pair_mismatch_warning
from treeopt.records.machine import AUTO
from treeopt.records.profile import UNKNOWN, Profile
from treeopt.report.engine_bench import engine_bench_table, interpolated_length_warning, losslessness
from treeopt.report.figures.benches import engine_panel
from treeopt.report.profile_text import measured_today
from treeopt.report.text import models_and_machine
from treeopt.texts.prompts import DEFAULT_PROMPTS, bench_prompts, prompts_name

if TYPE_CHECKING:
    from treeopt.profiler.engine import ProbeSettings


def _parse_gap(text: str) -> float:
    if not 0 <= (value := parse_number(text)) < float("inf"):
        raise ValueError(text)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEngineOptions:
    engine: str = argument(type=PROBED_ENGINE, metavar="ENGINE")
    profile_path: Path = profile_option(
        "Profile of the engine, written by treeopt probe. By default, its models and settings are used."
    )
    server: ServerOptions = group(ServerOptions)
    lengths: tuple[int, ...] = Heading.MEASURED.option(
        "--lengths", type=LENGTHS, default=(), help="Further draft lengths to run, separated by commas."
    )
    prompts: Path | None = prompts_option()
    chat_template: str | None = chat_template_option()
    max_prompts: int = max_prompts_option(64)
    temperature: float | None = temperature_option()
    max_new_tokens: int = max_new_tokens_option()
    repeats: int = repeats_option(5)
    together: bool = together_option()
    tolerance_nats: float | None = Heading.MEASURED.option(
        "--near-tie",
        type=Parsed("number", "a number of nats, at least 0", _parse_gap),
        metavar="NATS",
        help="Largest gap of log-probabilities that counts as rounding; by default that of the engine's dtype, or of "
        "float16 if it reports none.",
    )
    strict: bool = Heading.MEASURED.option(
        "--strict",
        is_flag=True,
        help="Exit with 1 if an output diverges from plain decoding's other than at a near-tie; needs temperature 0.",
    )
    results: ResultOptions = group(ResultOptions)


@click.command("engine", cls=Command, record=BenchEngineOptions)
def bench_engine(args: BenchEngineOptions) -> None:
    """Run ENGINE with several draft lengths, next to the predictions.

    The engine, measured before by treeopt probe, decodes plainly, with the plan's draft length, with its own default
    length and with those of the profile, in interleaved runs.  With --url, the lengths are those of the servers.
    """
    name = args.engine
    profile = load_profile(args.profile_path)
    if profile.engine is None or profile.engine.name != name:
        source = "treeopt's own decoder" if profile.engine is None else profile.engine.name
        raise click.UsageError(
            f"{args.profile_path}: expected a profile of {name}. Got one of {source}: write it with treeopt probe {name}."
        )
    if (temperature := _temperature(args, profile)) > 0:
        refuse_options(
            ["strict", "tolerance_nats"],
            f"expected temperature 0, where outputs are compared. Got {temperature:g}: give --temperature 0.",
        )
    model = step_model(profile, PlanRequest(temperature=args.temperature))
    planned = fastest_length(model)
    if args.server.url is not None:
        _check_servers(args.server.url, planned, args.lengths)
    engine = _engine_options(args, profile)
    engine.check(name)
    _run(args, profile, model, planned, engine.client(name), engine.config(name))


def _check_servers(url: str, planned: int, lengths: tuple[int, ...]) -> None:
    """Raise click.UsageError, which lists the servers to start, unless there is one for each length that is needed."""
    urls = {} if is_single_url(url) else parse_urls(url)
    needed = sorted({0, planned, *lengths})
    if missing := [length for length in needed if length not in urls]:
        listed = ",".join(f"{length}=URL" for length in sorted({*needed, *urls}))
        choice = f"{planned} the plan's choice" if planned else "the plan's choice"
        raise click.UsageError(
            f"--url: expected servers that run at the same time, with draft lengths {', '.join(map(str, needed))}: 0 is plain "
            f"decoding, {choice}. Got none for {', '.join(map(str, missing))}: start them, and give --url {listed}."
        )


def _engine_options(args: BenchEngineOptions, profile: Profile) -> EngineOptions:
    """Return the engine's options, by default as it was probed."""
    from treeopt.profiler.engine_profile import METHOD, NGRAM_TOKENS

    server, probed = args.server, profile.pair

    def placed(value: str, probed_value: str) -> str:
        return probed_value if value == AUTO and args.engine in PLACED and probed_value != UNKNOWN else value

    ngram_tokens = None if server.url else _probed_setting(profile, NGRAM_TOKENS)
    return EngineOptions(
        target=server.target or (None if server.url else probed.target_source),
        draft=server.draft or (None if server.url else probed.draft_source),
        url=server.url,
        program=server.program,
        method=_probed_setting(profile, METHOD),
        ngram_tokens=None if ngram_tokens is None else int(ngram_tokens),
        threads=server.threads or (None if server.url else profile.machine.threads),
        device=placed(server.device, profile.machine.device),
        dtype=placed(server.dtype, probed.dtype),
        timeout_s=server.timeout_s,
    )


def _probed_setting(profile: Profile, name: str) -> str | None:
    """Return a setting of the probed engine, None if the profile lacks it."""
    assert profile.engine is not None  # checked by the command
    return next((setting.value for setting in profile.engine.settings if setting.name == name), None)


def _run(
    args: BenchEngineOptions,
    profile: Profile,
    model: StepModel,
    planned: int,
    client: EngineClient,
    config: EngineConfig,
) -> None:
    from tqdm import tqdm

    from treeopt.profiler.bench.engine import bench_engine as measure
    from treeopt.profiler.engine_profile import heading_of

    default = default_length(client.name)
    settings = _settings(args, profile, planned, default)
    _warn_of_differences(profile, client, config, settings)
    if (interpolated := interpolated_length_warning(profile.chain_latencies[0], planned)) is not None:
        warn(interpolated)
    with tqdm(total=settings.batches, desc="bench     ", unit="answer", disable=None) as bar:
        bench = measure(client, config, settings, model, planned, bar.update, tolerance_nats=args.tolerance_nats)
    args.results.publish(
        engine_bench_table(bench, default),
        heading_of(client, config),
        bench,
        [engine_panel([bench])],
        title=models_and_machine(profile.pair, profile.machine),
        subtitle=f"{model.acceptance.rule} at temperature {model.acceptance.temperature:g}, {measured_today()}",
    )
    warning, error = losslessness(bench)
    if warning is not None:
        warn(warning)
    if args.strict and error is not None:
        raise error


def _settings(args: BenchEngineOptions, profile: Profile, planned: int, default: int | None) -> "ProbeSettings":
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.profiler.engine_profile import CHAT_TEMPLATE

    sample = select_prompts(args.prompts, args.max_prompts)
    template = args.chat_template or _probed_setting(profile, CHAT_TEMPLATE)
    lengths = {0, planned, *args.lengths}
    if args.server.url is not None:
        lengths.update(parse_urls(args.server.url))
    else:
        lengths.update(chain.length for chain in profile.chain_latencies[0].chains)
        lengths.update(() if default is None else (default,))
    return ProbeSettings(
        lengths=tuple(sorted(lengths)),
        prompts=tuple(bench_prompts(apply_chat_template(sample.texts, template))),
        chat_template=template,
        prompts_from=prompts_name(args.prompts or DEFAULT_PROMPTS, sample),
        rounds=args.repeats,
        max_new_tokens=args.max_new_tokens,
        temperature=_temperature(args, profile),
        together=args.together,
    )


def _temperature(args: BenchEngineOptions, profile: Profile) -> float:
    return profile.acceptances[0].temperature if args.temperature is None else args.temperature


def _warn_of_differences(
    profile: Profile, client: EngineClient, config: EngineConfig, settings: "ProbeSettings"
) -> None:
    """Warn if engine, models, prompts or machine differ from the probed ones."""
    from treeopt.profiler.engine_profile import machine_of, pair_of, settings_of

    probed = Identity.of(profile.pair, profile.machine)
    here = Identity.of(pair_of(config), machine_of(client, config))
    subject = "the profile is of"
    if not probed.same_pair(here):
        warn(pair_mismatch_warning(subject, probed.pair, here.pair, "probe again, or leave --target and --draft out"))
    differences = list(probed.differences(replace(here, threads=here.threads or probed.threads)))
    assert profile.engine is not None  # checked by the command
    if profile.engine.version != client.version:
        differences.append(f"{client.name} {profile.engine.version}, not {client.version}")
    current = {setting.name: setting.value for setting in settings_of(client, config, settings)}
    for setting in profile.engine.settings:
        value = current.get(setting.name, setting.value)
        if value != setting.value:
            differences.append(f"{setting.name} {setting.value}, not {value}")
    if differences:
        warn(machine_mismatch_warning(subject, differences, "times and acceptance may differ"))
