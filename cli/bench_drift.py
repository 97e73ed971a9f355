"""`treeopt bench --drift`: streams that change, as a table, a picture and JSON."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from treeopt import bundled
from treeopt.cli.bench_pair import load_fitting
from treeopt.cli.options.bench import BenchOptions
from treeopt.errors import TreeoptError
from treeopt.report.plan_text import models_and_machine

if TYPE_CHECKING:
    from treeopt.methods.drift import DriftEffort
    from treeopt.methods.drift_streams import Stream
    from treeopt.records.drift import DriftStream
    from treeopt.runtime.models.pair import ModelPair


def bench_drift(asked: BenchOptions) -> None:
    """Decode every stream in every way, `--repeats` times, print the table and write the JSON."""
    models = load_fitting(asked)
    from treeopt.methods.drift import DriftBench
    from treeopt.report.drift_bench import drift_json, drift_table

    effort = _effort(asked)
    bench = DriftBench(
        models=models,
        effort=effort,
        learning_missing="drafts that learn are not part of this bench yet",
        announce=lambda what: click.echo(what, err=True),
    )
    streams = _streams(asked, models, effort)
    rows: list[DriftStream] = []
    for round_ in range(asked.repeats or 1):
        if asked.repeats and asked.repeats > 1:
            click.echo(f"round {round_ + 1} of {asked.repeats}", err=True)
        rows += bench.run(streams)
    asked.publish(drift_table(rows), drift_json(rows))
    if asked.plot is not None:
        from treeopt.profiler.machine import describe_machine
        from treeopt.report.drift_figure import save_drift_figure

        machine = describe_machine(models.target.device)
        save_drift_figure(rows[: len(streams)], asked.plot, title=models_and_machine(models.described, machine))


def _effort(asked: BenchOptions) -> "DriftEffort":
    from treeopt.methods.drift import DriftEffort

    effort = DriftEffort(tokens=asked.stream_tokens)
    return replace(effort, new_tokens=min(asked.max_new_tokens or effort.new_tokens, max(1, asked.stream_tokens // 2)))


def _streams(asked: BenchOptions, models: "ModelPair", effort: "DriftEffort") -> "tuple[Stream, ...]":
    """Return the streams that are asked for; click.UsageError for a name that none has."""
    from treeopt.methods.drift_streams import StreamTexts, streams_of
    from treeopt.methods.prose import PROSE
    from treeopt.runtime.models.spoilt import spoilt_model
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = asked.prompts.load(models.tokenizer)
    texts = StreamTexts(
        measured=profile_prompts(prompts),
        held_out=bench_prompts(prompts),
        prose=[models.tokenizer.encode(text) for text in PROSE],
    )
    spoilt = None
    try:
        spoilt = spoilt_model(
            asked.pair.draft or bundled.DRAFT, asked.spoil, dtype=models.draft.dtype, device=models.draft.device
        )
    except TreeoptError as error:
        click.echo(f"streams with a spoilt draft are left out: {error}", err=True)
    found = streams_of(models, texts, new_tokens=effort.new_tokens, spoilt=spoilt)
    if asked.streams is None:
        return found
    names = [name.strip() for name in asked.streams.split(",")]
    for name in names:
        if not any(name in stream.name for stream in found):
            raise click.UsageError(
                f"--streams: expected parts of {', '.join(each.name for each in found)}. Got {name!r}."
            )
    return tuple(stream for stream in found if any(name in stream.name for name in names))
