"""`treeopt bench --drift`: streams that change, as a table, a picture and JSON."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from treeopt import bundled
from treeopt.cli.bench_pair import heading_here, load_fitting
from treeopt.cli.options.bench import BenchOptions
from treeopt.errors import TreeoptError
from treeopt.report.plan_text import models_and_machine

if TYPE_CHECKING:
    from treeopt.methods.drift import DriftEffort, Learner
    from treeopt.methods.drift_streams import Stream
    from treeopt.runtime.models.model import LanguageModel
    from treeopt.runtime.models.pair import ModelPair


def bench_drift(asked: BenchOptions) -> None:
    """Decode every stream in every way, `--repeats` times, print the table and write the JSON."""
    models = load_fitting(asked)
    from treeopt.methods.drift import DriftBench
    from treeopt.report.drift_bench import drift_json, drift_table

    effort = _effort(asked)
    learner, missing = _learner(models.draft)
    bench = DriftBench(
        models=models,
        effort=effort,
        learner=learner,
        learning_missing=missing,
        announce=lambda what: click.echo(what, err=True),
    )
    streams = _streams(asked, models, effort)
    rows = bench.run(streams, asked.repeats or 1)
    asked.publish(drift_table(rows), drift_json(heading_here(models), rows))
    if asked.plot is not None:
        from treeopt.profiler.machine import describe_machine
        from treeopt.report.drift_figure import save_drift_figure

        machine = describe_machine(models.target.device)
        save_drift_figure(rows, asked.plot, title=models_and_machine(models.described, machine))


def _learner(draft: "LanguageModel") -> "tuple[Learner | None, str | None]":
    """Return what gives a draft of its own to every stream, and has it learn; or why it cannot."""
    from treeopt.runtime.learning.learner import built_in, learning_copy

    try:
        built_in(draft)
    except TreeoptError as error:
        return None, str(error)
    return learning_copy, None


def _spoilt(asked: BenchOptions, models: "ModelPair") -> "LanguageModel":
    from treeopt.runtime.models.spoilt import spoilt_model

    folder = asked.pair.draft or bundled.DRAFT
    return spoilt_model(folder, asked.spoil, dtype=models.draft.dtype, device=models.draft.device)


def _effort(asked: BenchOptions) -> "DriftEffort":
    from treeopt.methods.drift import DriftEffort

    effort = DriftEffort(tokens=asked.stream_tokens)
    return replace(effort, new_tokens=min(asked.max_new_tokens or effort.new_tokens, max(1, asked.stream_tokens // 2)))


def _streams(asked: BenchOptions, models: "ModelPair", effort: "DriftEffort") -> "tuple[Stream, ...]":
    """Return the streams that are asked for; click.UsageError for a name that none has."""
    from treeopt.methods.drift_streams import StreamTexts, streams_of
    from treeopt.methods.prose import PROSE
    from treeopt.methods.stream_names import named
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = asked.prompts.load(models.tokenizer)
    texts = StreamTexts(
        measured=profile_prompts(prompts),
        held_out=bench_prompts(prompts),
        prose=[models.tokenizer.encode(text) for text in PROSE],
    )
    spoilt = None
    try:
        spoilt = _spoilt(asked, models)
    except TreeoptError as error:
        click.echo(f"streams with a spoilt draft are left out: {error}", err=True)
    found = streams_of(models, texts, new_tokens=effort.new_tokens, spoilt=spoilt)
    if asked.streams is None:
        return found
    names = [name.strip() for name in asked.streams.split(",")]
    for name in names:
        if not any(named(name, stream.name) for stream in found):
            raise click.UsageError(
                f"--streams: expected parts of {', '.join(each.name for each in found)}. Got {name!r}."
            )
    return tuple(stream for stream in found if any(named(name, stream.name) for name in names))
