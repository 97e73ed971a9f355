"""Measurements of `treeopt profile`, made by one process or by several of torchrun."""

import os
import time
from dataclasses import replace

import click

from treeopt.cli.options.profile import ProfileOptions
from treeopt.cli.outputs import checkpoint_path, record_checkpoint_path
from treeopt.cli.terminal import warn_of_other_programs
from treeopt.engines.importers import ImportedLatency, step_latencies
from treeopt.errors import InvalidValueError
from treeopt.profiler import Checkpoint, Measurement, RecordFiles, Recording, Settings, clock_for
from treeopt.profiler.budget import Budget, Deadline
from treeopt.profiler.checkpoint import check_origin
from treeopt.profiler.latency.load import CpuLoadReader
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.profiler.limits import check_measurable, longest_sequence
from treeopt.profiler.processes.distributed import local_device, processes_for
from treeopt.profiler.processes.processes import Processes
from treeopt.records.draft_record import DraftRecord
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.profile_text import choice_text, confidence_text, spent_text
from treeopt.runtime.drafters.registry import LoadedDrafter, load_drafter
from treeopt.runtime.models.pair import ModelPair
from treeopt.texts.prompts import profile_prompts
from treeopt.trees.drafter_setting import DrafterSetting

Prompts = list[list[int]]
RECORD_SHARE = 0.25
"""Share of the time budget for the draft record."""


def measure_profile(args: ProfileOptions) -> tuple[Profile, DraftRecord | None] | None:
    """Measure what is not imported and write it; return the profile and the draft record.

    Of several processes, only the first returns a result; the others return None.
    """
    settings = args.settings()
    device = local_device(args.pair.device, os.environ)
    processes = processes_for(os.environ, tensor_parallel=args.tensor_parallel, device=device)
    if processes.count > 1:  # each has its own clock
        if args.time_budget_s is not None:
            raise click.UsageError("--time-budget: expected one process. Give --rounds and --positions under torchrun.")
        settings = replace(settings, time_budget_s=None)
        args = replace(args, pair=replace(args.pair, device=str(device)))
    checkpoint = checkpoint_path(args.path)
    with processes.supervise(checkpoint):
        if args.resume and checkpoint is not None:
            check_origin(checkpoint)
        curves = args.imports.latencies
        acceptances = args.imports.acceptances(settings.rules[0], settings.sampling)
        return _measure(args, settings, processes, curves, acceptances)


def _measure(
    args: ProfileOptions,
    settings: Settings,
    processes: Processes,
    curves: tuple[ImportedLatency, ...],
    acceptances: tuple[MeasuredAcceptance, ...],
) -> tuple[Profile, DraftRecord | None] | None:
    is_first = processes.rank == 0
    models = args.pair.load(
        sequence_tokens=max(settings.context_tokens) + ROOM_TOKENS,
        tensor_parallel=args.tensor_parallel,
        quiet=not is_first,
    )
    all_prompts, categories = args.prompts.load_with_categories(models)
    prompts = profile_prompts(all_prompts)
    check_measurable(models.target, models.draft, prompts, settings)
    drafters = _load_drafters(args, settings, models, prompts, processes)
    settings = replace(settings, drafters=tuple(drafter.setting for drafter in drafters))
    if is_first and not args.imports.has_times:
        warn_of_other_programs(
            models.target,
            wait_s=args.wait_s or 0.0,
            several=processes.count > 1,
            remedy="wait for quiet with --wait 60s" if args.wait_s is None else "wait longer",
        )
    checkpoint_file = checkpoint_path(args.path)
    has_files = checkpoint_file is not None and is_first
    resumed = args.resume and checkpoint_file is not None and checkpoint_file.exists()
    # the conditions of recorded sequences are those in the checkpoint
    sequences = RecordFiles(record_checkpoint_path(args.path) if has_files else None, resume=resumed)
    heading = settings.conditions(models.target, models.draft, prompts, models.described)
    checkpoint = Checkpoint(checkpoint_file, heading, resume=args.resume, processes=processes)
    budget = None
    if settings.time_budget_s is not None:
        share = 1.0 if args.record is None else 1 - RECORD_SHARE
        budget = Budget(share * settings.time_budget_s, checkpoint)
    measurement = Measurement(
        models.target,
        models.draft,
        prompts,
        settings,
        clock=processes.clock(clock_for(models.target.device)),
        checkpoint=checkpoint,
        processes=processes,
        load=None if args.tensor_parallel else CpuLoadReader,
        pair=models.described,
        drafters=drafters,
        categories=tuple(profile_prompts(categories)),
        budget=budget,
    )
    result = _combine(measurement, settings, curves, acceptances, all_times=args.imports.has_times, show=is_first)
    if not is_first:
        return None
    record = _record(args, settings, models, prompts, sequences, budget)
    if budget is not None:
        _print_effort(budget, measurement)
    result.save(args.path)
    checkpoint.remove()
    sequences.remove()
    return result, record


def _load_drafters(
    args: ProfileOptions, settings: Settings, models: ModelPair, prompts: Prompts, processes: Processes
) -> list[LoadedDrafter]:
    """Load the drafters other than the draft model, before anything is timed."""
    if not args.other_drafters:
        return []
    if processes.count > 1:
        raise InvalidValueError(
            f"drafter: expected to be measured by one process. Got {processes.count}: leave torchrun out."
        )
    capacity = longest_sequence(models.target, models.draft, prompts, settings)
    loaded: dict[DrafterSetting, LoadedDrafter] = {}
    drafters = []
    for drafter in args.other_drafters:
        heads = replace(drafter, block_draft_tokens=None)
        if heads not in loaded:
            loaded[heads] = load_drafter(heads, models, capacity=capacity, cuda_graphs=settings.cuda_graphs)
        drafters.append(loaded[heads].with_block_of(drafter.block_draft_tokens))
    return drafters


def _combine(
    measurement: Measurement,
    settings: Settings,
    curves: tuple[ImportedLatency, ...],
    acceptances: tuple[MeasuredAcceptance, ...],
    *,
    all_times: bool,
    show: bool,
) -> Profile:
    """Measure what is not imported, and return both as one profile."""
    context, sampled = settings.context_tokens[0], not settings.sampling.greedy
    if all_times:
        times = step_latencies(curves, context_tokens=context, sampled=sampled)
        return measurement.profile(latencies=times, acceptances=acceptances or None, show_progress=show)
    result = measurement.profile(acceptances=acceptances or None, show_progress=show)
    if not curves:
        return result
    return replace(result, latencies=step_latencies(curves, result.latencies, context_tokens=context, sampled=sampled))


def _record(
    args: ProfileOptions,
    settings: Settings,
    models: ModelPair,
    prompts: Prompts,
    sequences: RecordFiles,
    budget: Budget | None,
) -> DraftRecord | None:
    """Record the draft model's probabilities and write them, if an option asks for it."""
    if args.record_path is None:
        return None
    recording = Recording(models.target, models.draft_model, prompts, settings, files=sequences)
    if budget is None:
        record = recording.record()
    else:
        with budget.spending("record"):
            left_s = budget.left_s + RECORD_SHARE * (settings.time_budget_s or 0.0)
            record = recording.record(deadline=Deadline(time.monotonic, time.monotonic() + left_s))
    record.save(args.record_path)
    return record


def _print_effort(budget: Budget, measurement: Measurement) -> None:
    """Print how the time was spent, and the confidence in the plan and in the choice of a drafter."""
    click.echo(spent_text(budget.spent_s), err=True)
    if measurement.certainty is not None:
        click.echo(confidence_text(measurement.certainty.confidence), err=True)
    if measurement.choice_confidence is not None:
        click.echo(choice_text(measurement.choice_confidence), err=True)
