"""`treeopt profile`: measure the machine and the pair."""

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from treeopt.cli.command import Command
from treeopt.cli.options.profile import ProfileOptions
from treeopt.cli.options.record import options
from treeopt.cli.profile_files import BESIDE, check_files, record_file
from treeopt.cli.terminal import warn
from treeopt.errors import Warning
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.records.draft_record import DraftRecord
    from treeopt.records.profile import Profile

SWEEP_OPTIONS = frozenset(
    {"sweep", "target", "draft", "temperature", "top_p", "top_k", "context_tokens", "path", "force", "verbose", "quiet"}
)
"""Names that `--sweep` goes with: what it was measured of and at, and where the profile is written."""


@click.command(cls=Command)
@options(ProfileOptions)
def profile(asked: ProfileOptions) -> None:
    """Measure a target, and its drafters, on this machine.

    Times of verification, drafting and whole steps are taken, and acceptance is counted.  A draft model is one drafter among
    others, measured where --draft names it; without --target and --draft the bundled pair is measured.  Every measurement is kept in OUTPUT.partial at once, and
    every recorded text in OUTPUT.record.partial: an interrupted profile goes on with --resume.

    With --latency, --draft-latency and --acceptance the curves of another engine are taken in place of measured ones.
    """
    rules = asked.rule_names  # refused first
    check_files(asked.path, asked.record_name, resume=asked.resume, force=asked.force)
    asked.check()
    if asked.imports.sweep:
        result, record = _swept(asked), None
        result.save(asked.path)
    elif asked.imports.everything:
        result, record = _imported(asked, rules[0]), None
        result.save(asked.path)
    else:
        from treeopt.cli.profile_run import measured

        found = measured(asked)
        if found is None:
            return
        result, record = found
    _tell(asked, result, record)


def _imported(asked: ProfileOptions, rule: str) -> "Profile":
    """Return a profile for which nothing is measured, nor any model loaded."""
    from treeopt.engines.importers import imported_profile

    samplings, pair = asked.how.samplings, asked.pair
    if len(samplings) > 1 or len(asked.context_tokens) > 1:
        raise click.UsageError(
            "--temperature, --context-tokens: expected one each where everything is imported: what the files were "
            "measured at. Got several."
        )
    (sampling,) = samplings
    result = imported_profile(
        asked.imports.latencies(),
        asked.imports.acceptances(rule, sampling),
        context_tokens=asked.context_tokens[0],
        sampled=not sampling.greedy,
        **{name: str(given) for name in ("target", "draft") if (given := getattr(pair, name)) is not None},
    )
    contexts = sorted({each.context_tokens for each in result.latencies})
    if asked.context_named and asked.context_tokens[0] not in contexts:
        named = ", ".join(map(str, contexts))
        raise click.UsageError(
            f"--context-tokens: expected {named:.80}, which the files name. Got {asked.context_tokens[0]}: leave it out."
        )
    return result


def _swept(asked: ProfileOptions) -> "Profile":
    """Return the profile of a sweep; click.UsageError beside options of what is measured here."""
    from treeopt.engines.importers import sweep_profile
    from treeopt.engines.importers.sweep import LEFT_OUT

    context, allowed = click.get_current_context(), SWEEP_OPTIONS
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.opts[0]}: expected without --sweep, for which nothing is measured here."
            )
    samplings, pair = asked.how.samplings, asked.pair
    if len(samplings) > 1 or len(asked.context_tokens) > 1:
        raise click.UsageError(
            "--temperature, --context-tokens: expected one each with --sweep: what it was measured at. Got several."
        )
    result = sweep_profile(
        asked.imports.sweep,
        sampling=samplings[0],
        context_tokens=asked.context_tokens[0],
        **{name: str(given) for name in ("target", "draft") if (given := getattr(pair, name)) is not None},
    )
    assert result.engine is not None  # steps of chains are an engine's
    for setting in result.engine.settings:
        if setting.name == LEFT_OUT:
            warn(Warning(f"--sweep: {setting.value} were left out.", "Measure chains too, where there are none."))
        else:
            found = f"--sweep: {setting.name} was not measured, and is {setting.value}, so speedups are rough."
            warn(Warning(found, "Add a row with draft length 0."))
    return result


def _tell(asked: ProfileOptions, result: "Profile", record: "DraftRecord | None") -> None:
    """Print what was measured, what to do next, and what to be warned of."""
    from treeopt.report.profile_text import record_summary, summary
    from treeopt.report.times_warnings import warnings

    text = "\n\n".join([summary(result), *([] if record is None else [record_summary(record)])])
    for line in [text, *_next(asked)]:
        click.echo(line, err=asked.to_stdout)
    for warning in warnings(result.latencies):
        warn(warning)


def _next(asked: ProfileOptions) -> list[str]:
    """Return which files were written, and what to do with them."""
    path, record_path = asked.path, asked.record_path
    lines = [] if asked.to_stdout else ["", f"Written to {path}. Next: treeopt solve --profile {quoted(path)}"]
    if record_path is not None and asked.to_stdout:
        lines.append(f"Draft record written to {record_path}.")
    elif record_path is not None:
        named = "" if record_path == record_file(BESIDE, path) else f" --record {quoted(record_path)}"
        lines.append(f"Draft record written to {record_path}. Next: treeopt export {quoted(path)}{named} --to sglang")
    return lines
