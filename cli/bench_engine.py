"""`treeopt bench engine`: whether a plan comes true in the engine that serves."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchEngineOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.cli.options.probe import EngineOptions
from treeopt.cli.options.prompts import in_chat_template, taken_prompts
from treeopt.cli.options.record import options
from treeopt.cli.terminal import warn
from treeopt.records.machine import AUTO
from treeopt.records.profile import UNKNOWN
from treeopt.report.plan_text import models_and_machine

if TYPE_CHECKING:
    from treeopt.engines.probes.client import EngineClient, Launch
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.records.profile import Profile

DEFAULTS = {
    "llama-server": "llama-cpp",
    "transformers": "hf",
    "vllm": "vllm",
    "openvino": "openvino",
    "mlx-lm": "mlx-lm",
}
"""Engines as they are probed: as their settings are exported."""


@click.command("engine", cls=Command)
@options(BenchEngineOptions)
def bench_engine(asked: BenchEngineOptions) -> None:
    """Run ENGINE with several draft lengths, next to the predictions.

    ENGINE was measured by treeopt probe. It decodes plainly, with the plan's draft length, with its default length and with
    those of the profile, in interleaved runs.
    """
    name = asked.engine
    profile = load_profile(asked.profile_path)
    if profile.engine is None or profile.engine.name != name:
        known = "treeopt's own decoder" if profile.engine is None else profile.engine.name
        raise click.UsageError(
            f"{asked.profile_path}: expected a profile of {name}. Got one of {known}: write it with treeopt probe {name}."
        )
    if asked.strict and (temperature := _temperature(asked, profile)) > 0:
        raise click.UsageError(
            f"--strict: expected temperature 0, where texts are compared. Got {temperature:g}: give --temperature 0."
        )
    engine = _engine(asked, profile)
    engine.check(name)
    _publish(asked, profile, engine.client(name), engine.launch(name))


def _engine(asked: BenchEngineOptions, profile: "Profile") -> EngineOptions:
    """Return the engine with the models that were probed, or those that the user names."""
    from treeopt.profiler.engine_profile import METHOD, NGRAM_TOKENS

    probed = profile.pair
    return EngineOptions(
        target=asked.target or (None if asked.url else probed.target_source),
        draft=asked.draft or (None if asked.url else probed.draft_source),
        url=asked.url,
        program=asked.program,
        method=_setting(profile, METHOD),
        ngram_tokens=None if (ngram := _setting(profile, NGRAM_TOKENS)) is None else int(ngram),
        threads=asked.threads or profile.machine.threads,
        device=_or_probed(asked, asked.device, profile.machine.device),
        dtype=_or_probed(asked, asked.dtype, probed.dtype),
        timeout_s=asked.timeout_s,
    )


def _or_probed(asked: BenchEngineOptions, named: str, probed: str) -> str:
    """Return the device or dtype that the user names, or else that of the profile, if the engine can be given one."""
    from treeopt.engines.probes.named import PLACED

    return probed if named == AUTO and asked.engine in PLACED and probed != UNKNOWN else named


def _setting(profile: "Profile", name: str) -> str | None:
    """Return what the engine was set to when it was probed; None where that is not said."""
    assert profile.engine is not None  # checked before
    return next((each.value for each in profile.engine.settings if each.name == name), None)


def _warn_of_differences(
    profile: "Profile", client: "EngineClient", launch: "Launch", settings: "ProbeSettings"
) -> None:
    """Warn where another engine, other models, prompts or another machine answer than were probed."""
    from dataclasses import replace

    from treeopt.profiler.engine_profile import machine_of, pair_of, settings_of
    from treeopt.records.identity import Identity, other_conditions_warning, other_pair_warning

    promised = Identity.of(profile.pair, profile.machine)
    here = Identity.of(pair_of(launch), machine_of(client, launch))
    said = "the profile is of"
    if not promised.same_pair(here):
        warn(other_pair_warning(said, promised.pair, here.pair, "probe again, or leave --target and --draft out"))
    differences = list(promised.differences(replace(here, threads=here.threads or promised.threads)))
    assert profile.engine is not None  # checked before
    if profile.engine.version != client.version:
        differences.append(f"{client.name} {profile.engine.version}, not {client.version}")
    run = {
        each.name: each.value for each in settings_of(client, launch, settings) if each.name != "threads"
    }  # told above
    differences += [
        f"{each.name} {each.value}, not {run[each.name]}"
        for each in profile.engine.settings
        if run.get(each.name, each.value) != each.value
    ]
    if differences:
        warn(other_conditions_warning(said, differences, "times and acceptance may differ"))


def _publish(asked: BenchEngineOptions, profile: "Profile", client: "EngineClient", launch: "Launch") -> None:
    from tqdm import tqdm

    from treeopt.planner import step_model
    from treeopt.planner.chains import fastest_length
    from treeopt.profiler.bench.engine import bench_engine as measure
    from treeopt.profiler.engine_profile import heading_of
    from treeopt.report.bench_heading import headed_table
    from treeopt.report.engine_bench import engine_bench_table
    from treeopt.report.losslessness_text import losslessness_error, losslessness_warning

    model = step_model(profile, temperature=asked.temperature)
    chosen, default = fastest_length(model), default_length(client.name)
    settings = _settings(asked, profile, chosen, default)
    _warn_of_differences(profile, client, launch, settings)
    with tqdm(total=settings.waves, desc="bench     ", unit="answer", disable=None) as bar:
        found = measure(client, launch, settings, model, chosen, bar.update, tolerance_nats=asked.tolerance_nats)
    heading = heading_of(client, launch)
    asked.results.publish(headed_table(heading, engine_bench_table(found, default)), heading, found)
    if asked.results.plot is not None:
        from treeopt.report.figures.benches import engine_panel
        from treeopt.report.profile_words import measured_today

        acceptance = model.acceptance
        asked.results.draw(
            [engine_panel([found])],
            title=models_and_machine(profile.pair, profile.machine),
            subtitle=f"{acceptance.rule} at temperature {acceptance.temperature:g}, {measured_today()}",
        )
    if (warning := losslessness_warning(found)) is not None:
        warn(warning)
    if asked.strict and (error := losslessness_error(found)) is not None:
        raise error


def _settings(asked: BenchEngineOptions, profile: "Profile", chosen: int, default: int | None) -> "ProbeSettings":
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.profiler.engine_profile import CHAT_TEMPLATE
    from treeopt.texts.prompts import DEFAULT_PROMPTS, bench_prompts, prompts_name

    sample = taken_prompts(asked.prompts, asked.most_prompts)
    template = asked.chat_template or _setting(profile, CHAT_TEMPLATE)
    lengths = {
        0,
        chosen,
        *(each.length for each in profile.chain_latencies[0].chains),
        *([] if default is None else [default]),
    }
    return ProbeSettings(
        lengths=tuple(sorted(lengths | set(asked.lengths))),
        prompts=tuple(bench_prompts(in_chat_template(sample.texts, template))),
        chat_template=template,
        prompts_from=prompts_name(asked.prompts or DEFAULT_PROMPTS, sample),
        rounds=asked.repeats,
        max_new_tokens=asked.max_new_tokens,
        temperature=_temperature(asked, profile),
        together=asked.together,
    )


def _temperature(asked: BenchEngineOptions, profile: "Profile") -> float:
    return profile.acceptances[0].temperature if asked.temperature is None else asked.temperature


def default_length(name: str) -> int | None:
    """Return the draft tokens that an engine takes when it is told nothing; None where it has to be told."""
    from treeopt.engines import ENGINES

    if name not in DEFAULTS:
        return None
    default = next(each for each in ENGINES if each.name == DEFAULTS[name]).default
    return None if default is None or not default.is_chain else default.depth
