"""`treeopt profile`: measure the machine and the pair."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.command import Command
from treeopt.cli.options import (
    PROFILE,
    PairOptions,
    PromptOptions,
    checked_rule,
    lossy_option,
    output,
    pair_options,
    prompt_options,
)
from treeopt.cli.other_programs import warn_of_other_programs
from treeopt.cli.profile_files import (
    BESIDE,
    ImportOptions,
    check_files,
    import_options,
    journal_path,
    record_file,
    texts_path,
)
from treeopt.cli.sampling_options import samplings_options
from treeopt.cli.text import quoted
from treeopt.cli.values import COUNT, COUNTS, DURATION, MOST, TEXT, Whole
from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import STANDARD_STREAM, is_stream
from treeopt.records.rules import RULES

if TYPE_CHECKING:
    from treeopt.records.draft_record import DraftRecord
    from treeopt.records.profile import Profile


@click.command(cls=Command)
@click.option(
    "-o",
    "--output",
    "path",
    type=output,
    default=PROFILE,
    show_default=True,
    help="File to write; - is standard output.",
)
@click.option(
    "--rules",
    type=TEXT,
    metavar="NAMES",
    default="sequoia",
    show_default=True,
    help=f"Verification rules to measure, with commas between: {', '.join(RULES)}.",
)
@lossy_option
@samplings_options
@click.option(
    "--context-tokens",
    type=COUNTS,
    metavar="NUMBERS",
    default="256",
    show_default=True,
    help="Tokens in the cache while times are taken; several with commas between.",
)
@click.option(
    "--batch-sizes",
    type=COUNTS,
    metavar="NUMBERS",
    default="1",
    show_default=True,
    help="Texts verified together while times are taken; several with commas between, 1 among them.",
)
@click.option(
    "--max-tokens",
    type=Whole(2, MOST),
    default=512,
    show_default=True,
    help="Largest pass that is timed; no larger budget can be planned.",
)
@click.option("--rounds", type=COUNT, default=25, show_default=True, help="Samples of every time.")
@click.option(
    "--time-budget",
    "time_budget_s",
    type=DURATION,
    help="Measure for so long, such as 90s or 3m, in place of --rounds and --positions: half for times, placed where "
    "they are least known, half for acceptance.",
)
@click.option(
    "--cuda-graphs/--no-cuda-graphs",
    default=None,
    help="Whether passes are timed as CUDA graphs; by default on a CUDA device, as decoding runs them.",
)
@click.option(
    "--positions",
    type=COUNT,
    default=4096,
    show_default=True,
    help="Generated tokens whose acceptance is counted, and that are recorded.",
)
@prompt_options
@import_options
@click.option(
    "--record",
    "record_name",
    metavar="[FILE]",
    is_flag=False,
    flag_value=BESIDE,
    help="Also record what the draft model thinks of each token, from which dynamic trees (EAGLE-2, SGLang) are "
    "chosen; without FILE beside the profile, as profile.record.npz.",
)
@click.option(
    "--wait",
    "wait_s",
    type=DURATION,
    help="Wait so long at most, such as 60s or 10m, until no other program uses the processors.",
)
@click.option("--resume", is_flag=True, help="Go on with an interrupted profile.")
@click.option("--tensor-parallel", is_flag=True, help="Split the target over the processes that torchrun started.")
@pair_options
def profile(
    path: Path,
    pair: PairOptions,
    prompts: PromptOptions,
    imports: ImportOptions,
    rules: str,
    wait_s: float | None,
    resume: bool,
    record_name: str | None,
    tensor_parallel: bool,
    **measured: Any,
) -> None:
    """Measure a pair of models on this machine.

    Times of verification, drafting and whole steps are taken, and acceptance is counted.  Without --target and --draft the bundled pair is measured.  Every measurement is kept in OUTPUT.partial at once, and
    every recorded text in OUTPUT.record.partial: an interrupted profile goes on with --resume.

    With --latency, --draft-latency and --acceptance the curves of another engine are taken in place of measured ones.
    """
    pair = replace(pair, tensor_parallel=tensor_parallel)
    names = tuple(checked_rule(rule.strip(), lossy=measured["lossy"], option="--rules") for rule in rules.split(","))
    to_stream = str(path) == STANDARD_STREAM
    record_path = None if record_name is None else record_file(record_name, path)
    check_files(path, record_path)
    if imports.times and wait_s is not None:
        raise click.UsageError("--wait: expected times to be taken. Got imported ones: leave it out.")
    if imports.everything and record_path is not None:
        raise click.UsageError("--record: expected a draft model to ask. Got imported curves and acceptance only.")
    if imports.everything:
        result, record = _imported(imports, names[0], pair, **measured), None
        result.save(path)
    else:
        found = _measured(path, pair, prompts, imports, names, resume, record_path, wait_s, **measured)
        if found is None:
            return
        result, record = found
    from treeopt.cli.profile_text import record_summary, summary
    from treeopt.records.steadiness import warnings

    click.echo("\n\n".join([summary(result), *([] if record is None else [record_summary(record)])]), err=to_stream)
    for line in _next(path, record_path):
        click.echo(line, err=to_stream)
    for warning in warnings(result.latencies):
        click.echo(f"Warning: {warning}", err=True)


def _imported(imports: ImportOptions, rule: str, pair: PairOptions, **measured: Any) -> "Profile":
    """Return a profile for which nothing is measured, nor any model loaded."""
    from treeopt.engines.reports import imported_profile

    if len(measured["samplings"]) > 1 or len(measured["context_tokens"]) > 1:
        raise click.UsageError(
            "--temperature, --context-tokens: expected one each where everything is imported: what the files were "
            "measured at. Got several."
        )
    sampling = measured["samplings"][0]
    return imported_profile(
        imports.latencies(),
        imports.acceptances(rule=rule, temperature=sampling.temperature, top_p=sampling.top_p),
        context_tokens=measured["context_tokens"][0],
        sampled=not sampling.greedy,
        **{name: str(given) for name in ("target", "draft") if (given := getattr(pair, name)) is not None},
    )


def _measured(
    path: Path,
    pair: PairOptions,
    prompts: PromptOptions,
    imports: ImportOptions,
    rules: tuple[str, ...],
    resume: bool,
    record_path: Path | None,
    wait_s: float | None,
    **measured: Any,
) -> "tuple[Profile, DraftRecord | None] | None":
    """Measure what was not imported and write it; return the profile, and the draft record where one is wanted.

    Of several processes only the first has something to return.
    """
    if record_path is not None and pair.tensor_parallel:
        raise click.UsageError("--record: expected without --tensor-parallel. Record with a target that is whole.")
    if imports.latency is not None and imports.draft_latency is None and pair.target is None:
        raise click.UsageError("--latency: expected --draft-latency too, or --target and --draft to time drafting of.")
    from treeopt.engines.reports import step_latencies, with_imported
    from treeopt.planner import fastest_drafted_tree
    from treeopt.profiler import Journal, Measurement, Recording, RecordSize, Settings, TextFiles, clock_for
    from treeopt.profiler.heading import check_edition
    from treeopt.profiler.latency.busy import ProcessorTimes
    from treeopt.profiler.latency.passes import ROOM_TOKENS
    from treeopt.profiler.processes.distributed import local_device, processes_for
    from treeopt.profiler.profile_run import check_measurable
    from treeopt.texts.prompts import profile_prompts

    try:
        settings = Settings(rules=rules, record=None if record_path is None else RecordSize(), **measured)
    except InvalidValueError as error:  # every setting is an option
        option, _, rest = str(error).partition(":")
        raise click.UsageError(f"--{option.replace('_', '-')}:{rest}") from None
    device = local_device(pair.device, os.environ)
    processes = processes_for(os.environ, tensor_parallel=pair.tensor_parallel, device=device)
    first = processes.rank == 0
    journal_file = None if is_stream(path) else journal_path(path)
    with processes.watched(journal_file):
        if resume and journal_file is not None:
            check_edition(journal_file)
        sampling, context = settings.sampling, settings.context_tokens[0]
        curves = imports.latencies()
        tables = imports.acceptances(rule=rules[0], temperature=sampling.temperature, top_p=sampling.top_p)
        models = replace(pair, device=str(device), quiet=not first).load(
            text_tokens=max(settings.context_tokens) + ROOM_TOKENS
        )
        tokens = profile_prompts(prompts.load(models.tokenizer))
        check_measurable(models.target, models.draft, tokens, settings)
        if first and not imports.times:
            warn_of_other_programs(
                models.target,
                wait_s=wait_s or 0.0,
                several=processes.count > 1,
                otherwise="wait for quiet with --wait 60s" if wait_s is None else "wait longer",
            )
        texts = TextFiles(texts_path(path) if journal_file and first else None, resume=resume)
        heading = settings.conditions(models.target, models.draft, tokens, models.described)
        journal = Journal(journal_file, heading, resume=resume, processes=processes)
        measurement = Measurement(
            models.target,
            models.draft,
            tokens,
            settings,
            clock=processes.clock(clock_for(models.target.device)),
            journal=journal,
            fastest_tree=fastest_drafted_tree,
            processes=processes,
            load=None if pair.tensor_parallel else ProcessorTimes,
            pair=models.described,
        )
        times = step_latencies(curves, context_tokens=context, sampled=not sampling.greedy) if imports.times else None
        result = measurement.profile(latencies=times, acceptances=tables or None, show_progress=first)
        if curves and times is None:
            result = with_imported(result, curves, context_tokens=context, sampled=not sampling.greedy)
        if not first:
            return None
        record = None
        if record_path is not None:
            record = Recording(models.target, models.draft, tokens, settings, files=texts).record()
            record.save(record_path)
        result.save(path)
        journal.remove()
        texts.remove()
    return result, record


def _next(path: Path, record_path: Path | None) -> list[str]:
    """Return which files were written, and what to do with them."""
    to_stream = str(path) == STANDARD_STREAM
    lines = [] if to_stream else ["", f"Written to {path}. Next: treeopt solve --profile {quoted(path)}"]
    if record_path is not None and to_stream:
        lines.append(f"Draft record written to {record_path}.")
    elif record_path is not None:
        named = "" if record_path == record_file(BESIDE, path) else f" --record {quoted(record_path)}"
        lines.append(f"Draft record written to {record_path}. Next: treeopt export {quoted(path)}{named} --to sglang")
    return lines
