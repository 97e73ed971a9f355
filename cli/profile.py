"""`treeopt profile`: measure a target and its drafters on this machine."""

from collections.abc import Collection

import click

from treeopt.cli.command import Command
from treeopt.cli.options.profile import ProfileOptions
from treeopt.cli.options.record import is_given, refuse_other_options
from treeopt.cli.outputs import check_profile_outputs, default_record_path, is_stdout
from treeopt.cli.terminal import print_result, warn
from treeopt.errors import Warning
from treeopt.records.draft_record import DraftRecord
from treeopt.records.profile import Profile
from treeopt.report.text import quoted

IMPORT_OPTIONS = ("target", "draft", "temperature", "top_p", "top_k", "context_tokens", "path", "force")
"""Options that have an effect on any import."""


@click.command(cls=Command, record=ProfileOptions)
def profile(args: ProfileOptions) -> None:
    """Measure a target and its drafters on this machine.

    Measures times of verification, drafting and whole steps, and how often drafted tokens are accepted.  Name models with
    --target and --draft; without them, the bundled pair is measured.  Measurements are saved in OUTPUT.partial as they
    are made: after an interruption, run the same command with --resume.

    With --latency, --draft-latency and --acceptance, measurements of another engine are imported instead.
    """
    rules = args.rule_names  # checked first
    check_profile_outputs(args.path, args.record, resume=args.resume, force=args.force)
    args.check()
    record = None
    if args.imports.sweep:
        result = _import_sweep(args)
        result.save(args.path)
    elif args.imports.has_everything:
        result = _import_everything(args, rules[0])
        result.save(args.path)
    else:
        args.check_measured()
        from treeopt.cli.profile_run import measure_profile

        measured = measure_profile(args)
        if measured is None:
            return
        result, record = measured
    _print_summary(args, result, record)


def _check_imported(args: ProfileOptions, taken: Collection[str], reason: str) -> None:
    """Raise click.UsageError for an option without an effect on imports, with a reason, and for several conditions."""
    refuse_other_options(taken, reason)
    if len(args.sampling.samplings) > 1 or len(args.context_tokens) > 1:
        raise click.UsageError(
            "--temperature, --context-tokens: expected one each, at which the files were measured. Got several."
        )


def _import_everything(args: ProfileOptions, rule: str) -> Profile:
    from treeopt.engines.importers import imported_profile

    reason = "expected something to measure. Got imported measurements only: leave it out."
    _check_imported(args, [*IMPORT_OPTIONS, "latency", "draft_latency", "acceptance", "rules", "lossy"], reason)
    (sampling,) = args.sampling.samplings
    result = imported_profile(
        args.imports.latencies,
        args.imports.acceptances(rule, sampling),
        context_tokens=args.context_tokens[0],
        sampled=not sampling.greedy,
        **_model_names(args),
    )
    contexts = sorted({latency.context_tokens for latency in result.latencies})
    if is_given("context_tokens") and args.context_tokens[0] not in contexts:
        names = ", ".join(map(str, contexts))
        raise click.UsageError(
            f"--context-tokens: expected {names:.80}, which the files name. Got {args.context_tokens[0]}: leave it out."
        )
    return result


def _import_sweep(args: ProfileOptions) -> Profile:
    from treeopt.engines.importers import sweep_profile
    from treeopt.engines.importers.sweep_profile import ESTIMATED, LEFT_OUT

    reason = "expected without --sweep, which measures nothing here."
    _check_imported(args, [*IMPORT_OPTIONS, "sweep"], reason)
    result = sweep_profile(
        args.imports.sweep,
        sampling=args.sampling.samplings[0],
        context_tokens=args.context_tokens[0],
        **_model_names(args),
    )
    assert result.engine is not None  # a sweep measures the chains of an engine
    for setting in result.engine.settings:
        if setting.name == LEFT_OUT:
            warn(Warning(f"--sweep: left out {setting.value}.", "Measure chains too, where there are none."))
        else:
            reason = f"--sweep: {setting.name} was not measured, and is {setting.value}, so predictions are rough."
            missing = "column accept_length" if setting.name == ESTIMATED else "row with draft length 0"
            warn(Warning(reason, f"Add a {missing}."))
    return result


def _model_names(args: ProfileOptions) -> dict[str, str]:
    models = {"target": args.pair.target, "draft": args.pair.draft}
    return {name: str(path) for name, path in models.items() if path is not None}


def _print_summary(args: ProfileOptions, result: Profile, record: DraftRecord | None) -> None:
    """Print what was measured, warnings, and which commands to run next."""
    from treeopt.report.plan_warnings import head_warnings, times_warnings
    from treeopt.report.profile_text import profile_summary, record_summary

    path, record_path = args.path, args.record_path
    print_result(
        profile_summary(result) if record is None else f"{profile_summary(result)}\n\n{record_summary(record)}",
        [path],
        warnings=[*times_warnings(result.latencies), *head_warnings(result.drafters)],
        next_command=f"treeopt solve --profile {quoted(path)}",
    )
    if record_path is not None and is_stdout(path):
        click.echo(f"Draft record written to {record_path}.", err=True)
    elif record_path is not None:
        option = "" if record_path == default_record_path(path) else f" --record {quoted(record_path)}"
        click.echo(f"Draft record written to {record_path}. Next: treeopt export {quoted(path)}{option} --to sglang")
