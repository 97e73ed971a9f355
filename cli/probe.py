"""`treeopt probe`: measure an engine that serves, from outside."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.options.probe import ProbeOptions
from treeopt.cli.options.record import options
from treeopt.cli.profile_files import check_files
from treeopt.cli.terminal import warn
from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.engines.probes.client import EngineClient, Launch
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.records.profile import Profile


@click.command(cls=Command)
@options(ProbeOptions)
def probe(asked: ProbeOptions) -> None:
    """Measure ENGINE from outside, and write its profile.

    The engine decodes the same prompts plainly and with drafts of several lengths, in turn.  From its own times and
    counters come seconds of its steps and how often drafts are accepted: solve, export, compare and bench --engine plan
    with them as with any profile.  Every answer is kept in OUTPUT.partial at once; --resume goes on from there.
    """
    if asked.listed:
        _list()
        return
    name = asked.check()
    check_files(asked.path, None)
    client, launch = asked.models.client(name), asked.models.launch()
    result = _measured(asked, client, launch)
    result.save(asked.path)
    _tell(asked, result)


def _list() -> None:
    from treeopt.engines.probes.named import availabilities
    from treeopt.report.probe_text import availability_lines

    for each in availabilities():
        click.echo(availability_lines(each))


def _measured(asked: ProbeOptions, client: "EngineClient", launch: "Launch") -> "Profile":
    """Ask the engine everything that is not in the journal yet, and return its profile; the journal goes then."""
    from tqdm import tqdm

    from treeopt.profiler import Journal
    from treeopt.profiler.engine import Probe
    from treeopt.profiler.engine_profile import engine_profile

    settings = _settings(asked)
    heading = f"probe 1, {client.name} {client.version} {client.settings}, {launch}, {settings}"
    journal = Journal(asked.journal_file, heading, resume=asked.resume)
    probe = Probe(client, launch, settings, journal)
    with tqdm(total=settings.waves, desc="probe     ", unit="text", disable=None) as bar:
        probe.measure(bar.update, budget_s=asked.time_budget_s)
    found = engine_profile(client, launch, settings, probe)
    journal.remove()
    return found


def _settings(asked: ProbeOptions) -> "ProbeSettings":
    from treeopt.profiler.engine import ProbeSettings
    from treeopt.texts.prompts import load_prompts, profile_prompts

    prompts = (
        load_prompts(most=asked.most_prompts)
        if asked.prompts is None
        else load_prompts(asked.prompts, most=asked.most_prompts)
    )
    return ProbeSettings(
        lengths=asked.lengths,
        batch_sizes=asked.batch_sizes,
        prompts=tuple(profile_prompts(prompts)),
        rounds=asked.rounds,
        max_new_tokens=asked.max_new_tokens,
        temperature=asked.temperature,
    )


def _tell(asked: ProbeOptions, result: "Profile") -> None:
    """Print what was measured, what it does not tell apart, and what to do next."""
    from treeopt.report.probe_text import doubts, probe_summary

    to_stdout = str(asked.path) == STANDARD_STREAM
    click.echo(probe_summary(result), err=to_stdout)
    if not to_stdout:
        click.echo(f"\nWritten to {asked.path}. Next: treeopt solve --profile {quoted(asked.path)}")
    for each in doubts(result):
        warn(each)
