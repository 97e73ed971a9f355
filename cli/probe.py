"""`treeopt probe`: measure an engine that serves, from outside."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING
from zlib import crc32

import click

from treeopt.cli.command import Command
from treeopt.cli.options.probe import ProbeOptions
from treeopt.cli.options.prompts import in_chat_template, taken_prompts
from treeopt.cli.options.record import options
from treeopt.cli.profile_files import check_files
from treeopt.cli.repeated import repeated
from treeopt.cli.terminal import warn
from treeopt.errors import Warning
from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.engines.probes.client import EngineClient, Launch
    from treeopt.profiler import Journal
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.records.profile import Profile

NEXT_LENGTH = 3
"""Draft tokens that are proposed where only plain decoding was measured."""


@click.command(cls=Command)
@options(ProbeOptions)
def probe(asked: ProbeOptions) -> None:
    """Measure ENGINE from outside, and write its profile.

    The engine decodes the same prompts plainly and with drafts of several lengths, in turn.  From its own times and
    counters come seconds of its steps and how often drafts are accepted: solve, export, compare and bench engine plan
    with them as with any profile.  Every answer is kept in OUTPUT.partial at once; --resume goes on from there.
    """
    if asked.listed:
        _list()
        return
    asked = asked.resolved()
    name = asked.check()
    check_files(asked.path, resume=asked.resume, force=asked.force)
    client, launch = asked.served.client(name), asked.served.launch(name)
    settings = _settings(asked)
    journal = _journal(asked, client, launch, settings)
    result = _measured(asked, client, launch, settings, journal)
    if result is None:
        return
    result.save(asked.path)
    if not asked.one_length:
        journal.remove()
    _tell(asked, result)


def _list() -> None:
    from treeopt.engines.probes.named import availabilities
    from treeopt.report.probe_text import availability_lines

    for each in availabilities():
        click.echo(availability_lines(each))


def _journal(asked: ProbeOptions, client: "EngineClient", launch: "Launch", settings: "ProbeSettings") -> "Journal":
    """Return what keeps the answers.  Lengths and addresses are no conditions: others may follow in another run."""
    from treeopt.profiler import Journal

    others = ("lengths", "categories")
    conditions = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name not in others}
    conditions["prompts"] = f"{len(settings.prompts)}, {crc32(repr(settings.prompts).encode()):08x}"
    heading = f"probe 2, {client.name} {client.version} {client.settings}, {launch}, {conditions}"
    return Journal(asked.journal_file, heading, resume=asked.resume)


def _measured(
    asked: ProbeOptions, client: "EngineClient", launch: "Launch", settings: "ProbeSettings", journal: "Journal"
) -> "Profile | None":
    """Ask the engine everything that is not in the journal yet, and return the profile of all that is there.

    None where another length has to be measured first, which is told.
    """
    from tqdm import tqdm

    from treeopt.profiler.engine import Probe
    from treeopt.profiler.engine_profile import engine_profile

    probe = Probe(client, launch, settings, journal)
    with tqdm(total=settings.waves, desc="probe     ", unit="text", disable=None) as bar:
        probe.measure(bar.update, budget_s=asked.time_budget_s)
    lengths = probe.measured()
    if asked.one_length and (0 not in lengths or len(lengths) < 2):
        _tell_missing(asked, lengths)
        return None
    if count := probe.ended_at_once():
        found = f"{count} texts ended at once, of which no step can be timed. They are left out."
        warn(Warning(found, "Replace their prompts, or start the engine so that it ignores end tokens."))
    return engine_profile(client, launch, replace(settings, lengths=lengths), probe)


def _tell_missing(asked: ProbeOptions, lengths: Sequence[int]) -> None:
    """Say which lengths are there, which has to follow, and by which command."""
    missing, start = (0, "without a draft") if 0 not in lengths else (NEXT_LENGTH, f"with {NEXT_LENGTH} draft tokens")
    least = "0, plain decoding" if missing == 0 else f"one above 0, such as {missing}"
    click.echo(f"Draft tokens measured: {', '.join(map(str, lengths))}. Kept in {asked.journal_file}.")
    again = repeated({"lengths": (missing,), "resume": True, "path": asked.path})
    click.echo(f"Missing: {least}. Start the server {start}, then: {again}")


def _settings(asked: ProbeOptions) -> "ProbeSettings":
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.texts.prompts import DEFAULT_PROMPTS, profile_prompts, prompts_name

    sample = taken_prompts(asked.prompts, asked.most_prompts)
    return ProbeSettings(
        lengths=asked.lengths,
        batch_sizes=asked.batch_sizes,
        prompts=tuple(profile_prompts(in_chat_template(sample.texts, asked.chat_template))),
        categories=tuple(profile_prompts(sample.text_categories)),
        chat_template=asked.chat_template,
        prompts_from=prompts_name(asked.prompts or DEFAULT_PROMPTS, sample),
        rounds=asked.rounds,
        max_new_tokens=asked.max_new_tokens,
        temperature=asked.temperature,
        together=asked.together,
    )


def _tell(asked: ProbeOptions, result: "Profile") -> None:
    """Print what was measured, what it does not tell apart, and what to do next."""
    from treeopt.report.probe_text import doubts, probe_summary

    to_stdout = str(asked.path) == STANDARD_STREAM
    click.echo(probe_summary(result), err=to_stdout)
    if not to_stdout:
        click.echo(f"\nWritten to {asked.path}. Next: treeopt solve --profile {quoted(asked.path)}")
    if asked.one_length:
        click.echo(f"Answers stay in {asked.journal_file}: measure further lengths with --resume, or remove it.")
    for each in doubts(result):
        warn(each)
