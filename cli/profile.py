"""`treeopt profile`: measure the machine and the pair."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import (
    PairOptions,
    checked_rule,
    lossy_option,
    output,
    pair_options,
    record_beside,
    sampling_options,
)
from treeopt.cli.text import milliseconds
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files import STANDARD_STREAM, check_writable
from treeopt.rules import RULES, rule_label

if TYPE_CHECKING:
    from treeopt.draft_record import DraftRecord
    from treeopt.profile import MeasuredAcceptance, Profile

JOURNAL_SUFFIX = ".partial"
TEXTS_SUFFIX = ".record.partial"
BESIDE = ""
"""Stands for a record file beside the profile."""
SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@click.command()
@click.option(
    "-o",
    "--output",
    "path",
    type=output,
    default=Path("profile.yaml"),
    show_default=True,
    help="File to write; - is standard output.",
)
@click.option(
    "--rules",
    default="sequoia",
    show_default=True,
    help=f"Verification rules to measure, with commas between: {', '.join(RULES)}.",
)
@lossy_option
@sampling_options
@click.option(
    "--context-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Tokens in the cache while times are taken.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Largest pass that is timed; no larger budget can be planned.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=25, show_default=True, help="Samples of every time.")
@click.option(
    "--positions",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Generated tokens whose acceptance is counted, and that are recorded.",
)
@click.option(
    "--record",
    "record_name",
    metavar="[FILE]",
    is_flag=False,
    flag_value=BESIDE,
    help="Also record what the draft model thinks of each token, from which dynamic trees (EAGLE-2, SGLang) are "
    "chosen; without FILE beside the profile, as profile.record.npz.",
)
@click.option("--resume", is_flag=True, help="Go on with an interrupted profile.")
@pair_options
def profile(path: Path, pair: PairOptions, rules: str, resume: bool, record_name: str | None, **measured: Any) -> None:
    """Measure verification, draft and acceptance of a pair on this machine.

    Without --target and --draft the bundled pair is measured.  Every measurement is kept in OUTPUT.partial at once, and
    every recorded text in OUTPUT.record.partial: an interrupted profile goes on with --resume.
    """
    names = tuple(checked_rule(rule.strip(), lossy=measured["lossy"], option="--rules") for rule in rules.split(","))
    to_stream = str(path) == STANDARD_STREAM
    record_path = None if record_name is None else record_file(record_name, path)
    for file in (path, None if to_stream else journal_path(path), record_path):
        if file is not None:
            check_writable(file)
    from treeopt.planner import fastest_drafted_tree
    from treeopt.profiler import Journal, Measurement, Recording, RecordSize, Settings, TextFiles, clock_for
    from treeopt.runtime.pair import load_prompts, profile_prompts

    try:
        settings = Settings(rules=names, record=None if record_path is None else RecordSize(), **measured)
    except InvalidValueError as error:  # every setting is an option
        raise click.UsageError(f"--{error}") from None
    models = pair.load()
    prompts = [models.tokenizer.encode(text) for text in profile_prompts(load_prompts())]
    journal_file, texts_folder = (None, None) if to_stream else (journal_path(path), texts_path(path))
    texts = TextFiles(texts_folder, resume=resume)
    journal = Journal(journal_file, settings.conditions(models.target, models.draft, prompts), resume=resume)
    measurement = Measurement(
        models.target,
        models.draft,
        prompts,
        settings,
        clock=clock_for(models.target.device),
        journal=journal,
        fastest_tree=fastest_drafted_tree,
    )
    recording = Recording(models.target, models.draft, prompts, settings, files=texts)
    try:
        result = measurement.profile()
        record = None if record_path is None else recording.record()
    except KeyboardInterrupt:
        if journal_file is None:
            raise
        raise TreeoptError(
            f"interrupted. What was measured is in {journal_file}; the same command with --resume goes on from there."
        ) from None
    result.save(path)
    if record is not None and record_path is not None:
        record.save(record_path)
    journal.remove()
    texts.remove()
    click.echo("\n\n".join([summary(result), *([] if record is None else [record_summary(record)])]), err=to_stream)
    for line in _next(path, record_path):
        click.echo(line, err=to_stream)


def _next(path: Path, record_path: Path | None) -> list[str]:
    """Return which files were written, and what to do with them."""
    to_stream = str(path) == STANDARD_STREAM
    lines = [] if to_stream else ["", f"Written to {path}. Next: treeopt solve --profile {path}"]
    if record_path is not None and to_stream:
        lines.append(f"Draft record written to {record_path}.")
    elif record_path is not None:
        named = "" if record_path == record_file(BESIDE, path) else f" --record {record_path}"
        lines.append(f"Draft record written to {record_path}. Next: treeopt export {path}{named} --to sglang")
    return lines


def record_file(name: str, path: Path) -> Path:
    """Return where the draft record is written; click.UsageError where that cannot be."""
    if name == BESIDE and str(path) == STANDARD_STREAM:
        raise click.UsageError("--record: expected a file, because the profile goes to standard output. Name one.")
    file = Path(name) if name != BESIDE else record_beside(path)
    if name == STANDARD_STREAM or file == path:
        raise click.UsageError(f"--record: expected a file of its own. Got {name}: a record is not text.")
    return file


def texts_path(path: Path) -> Path:
    """Return the folder where the recorded texts of an unfinished profile are kept."""
    return path.with_name(path.name + TEXTS_SUFFIX)


def journal_path(path: Path) -> Path:
    """Return where the measurements of an unfinished profile are kept."""
    return path.with_name(path.name + JOURNAL_SUFFIX)


def summary(profile: "Profile") -> str:
    """Return what a profile holds, in a few lines."""
    latency = profile.latency()
    machine, pair = profile.machine, profile.pair
    shown = [tokens for tokens in SHOWN_TOKENS if tokens <= latency.verify.max_tokens]
    lines = [
        f"{_named(pair.target, pair.target_parameters)} + {_named(pair.draft, pair.draft_parameters)}, {pair.dtype}",
        f"{machine.processor}, {machine.device}, {machine.threads} threads, torch {machine.torch}",
        "",
        f"tokens in a pass    {''.join(f'{tokens:>7}' for tokens in shown)}",
        f"verify, ms          {''.join(f'{milliseconds(float(latency.verify.seconds(tokens))):>7}' for tokens in shown)}",
        f"draft a level, ms   {''.join(f'{milliseconds(float(latency.draft.seconds(tokens))):>7}' for tokens in shown)}",
        f"overhead of a step  {_overheads(profile)}",
    ]
    return "\n".join([*lines, *(line for acceptance in profile.acceptances for line in _table(acceptance))])


def record_summary(record: "DraftRecord") -> str:
    """Return what a draft record holds, in two lines."""
    nodes = len(record.parent) / record.roots
    return (
        f"draft record at temperature {record.temperature:g}, {record.roots} positions of {record.texts} texts\n"
        f"dynamic trees up to top-k {record.top_k}, depth {record.depth}; {nodes:.0f} draft nodes a position"
    )


def _overheads(profile: "Profile") -> str:
    latency = profile.latency()
    if not latency.rule_overheads:
        return f"{milliseconds(latency.overhead.median_s):>7} ms"
    return ", ".join(f"{each.rule} {milliseconds(each.overhead.median_s)} ms" for each in latency.rule_overheads)


def _table(acceptance: "MeasuredAcceptance") -> list[str]:
    """Return the lines of one rule."""
    rows = acceptance.table.rows(acceptance.table.max_depth or 1)[:, 0]  # below a parent of rank 0, as the root counts
    return [
        "",
        (
            f"acceptance, {rule_label(acceptance.rule)} at temperature {acceptance.temperature:g}, "
            f"{acceptance.positions} positions"
        ),
        "rank                " + "".join(f"{rank:>7}" for rank in range(min(8, acceptance.table.branching))),
        *(
            f"depth {depth:<14}" + "".join(f"{value:>7.3f}" for value in rows[depth - 1][:8])
            for depth in (1, 2, 4, 8, 16)
            if depth <= len(rows)
        ),
    ]


def _named(model: str, parameters: int) -> str:
    return f"{model} ({parameters / 1e6:.3g} M parameters)"
