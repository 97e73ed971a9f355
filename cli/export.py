"""`treeopt export`: a tree in another program's format, or an engine's settings."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.export_files import MAIN, check_export, sidecar_of, write_export
from treeopt.cli.format_list import list_option
from treeopt.cli.identity import check_models, identity_of
from treeopt.cli.options.export import WRITE_OPTIONS, ExportOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.cli.options.record import options
from treeopt.cli.plan_profile import profile_for_category
from treeopt.cli.terminal import warn
from treeopt.cli.waiting import patience
from treeopt.errors import TreeoptError, Warning
from treeopt.files.whole_files import STANDARD_STREAM, is_stream

if TYPE_CHECKING:
    from treeopt.engines.engine import Engine
    from treeopt.engines.importers import AcceptanceFormat
    from treeopt.trees.formats.topology import TopologyFormat


@click.command(cls=Command)
@list_option
@options(ExportOptions)
def export(asked: ExportOptions) -> None:
    """Write a tree or a setting for another program.

    FILE is a tree in any known format, a solution file, or a profile, whose fastest tree or setting is then taken.
    Settings are planned with the profile; without one only the depth of the tree is carried over.
    """
    from treeopt.engines import ENGINES
    from treeopt.engines.importers import ACCEPTANCE_FORMATS
    from treeopt.trees.formats import FORMATS

    formats, engines = {each.name: each for each in FORMATS}, {each.name: each for each in ENGINES}
    acceptances = {each.name: each for each in ACCEPTANCE_FORMATS}
    target, written = asked.target, asked.written
    if target not in formats | engines | acceptances:
        raise click.UsageError(f"--to: expected one of {', '.join(formats | engines | acceptances)}. Got {target!r}.")
    if target in formats:
        asked.refuse_others(asked.options_of_tree() | {WRITE_OPTIONS[name] for name in formats[target].takes})
    elif target in engines:
        engine = engines[target]
        asked.refuse_others({*engine.takes, *asked.options_of_plan(records=engine.dynamic, rule=engine.static)})
    else:
        asked.refuse_others(acceptances[target].takes)
    files = [] if is_stream(written) else [written, sidecar_of(written)]
    check_export(written, files, asked.inputs, force=asked.force)
    if target in formats:
        _export_tree(formats[target], written, asked)
    elif target in engines:
        _export_setting(engines[target], written, asked)
    else:
        _export_acceptance(acceptances[target], written, asked)


def _export_tree(target: "TopologyFormat", written: Path, asked: ExportOptions) -> None:
    from treeopt.engines.settings.provenance import topology_provenance
    from treeopt.report.setting_text import topology_text
    from treeopt.trees.formats.topology import WriteOptions

    if str(written) == STANDARD_STREAM and not target.text:
        raise click.UsageError(f"--output: a {target.name} file is not text. Name a file with -o.")
    content = asked.tree()
    if content.drafter is not None and content.drafter.own_trees:
        raise TreeoptError(
            f"{asked.path}: expected a tree to write. Got {content.drafter.name}, which brings trees of its own: export "
            "it to an engine that has this drafter."
        )
    how = WriteOptions(name=asked.list_name, max_depth=asked.heads)
    made = target.write(content.tree, how, written.suffix.lower())
    inputs = asked.inputs
    files = write_export(
        written,
        {MAIN: made.data},
        inputs,
        lambda files: topology_provenance(target, content, inputs, files),
        force=asked.force,
    )
    _tell(topology_text(target, content.tree), made.warnings, files)


def _export_setting(engine: "Engine", written: Path, asked: ExportOptions) -> None:
    from treeopt.engines.settings.common import emit
    from treeopt.engines.settings.provenance import setting_provenance
    from treeopt.engines.settings.setting import setting
    from treeopt.records.identity import Identity
    from treeopt.report.setting_text import setting_text

    whole = None if asked.profile_path is None else load_profile(asked.profile_path)
    profile = None if whole is None else profile_for_category(whole, asked.category)
    content = None if asked.path == asked.profile_path else asked.tree()
    if content is not None and content.drafter is not None:  # set as its file says, nothing is planned
        asked.refuse_others({*engine.takes, "name", "budget", "depth", "profile_path"})
    if content is not None and profile is not None:
        planned = Identity.planned_for(content.provenance)
        check_models(asked.path, planned, identity_of(profile), force=asked.force)
    source = asked.source(profile, content)
    with patience("replaying the record under every setting"):
        made = setting(engine, source)
    if asked.draft_model is not None and made.asked is not None:
        other = emit(engine, replace(made.asked, draft_model=f"{made.asked.draft_model}-"))
        if (other.files, other.usage) == (made.emitted.files, made.emitted.usage):
            raise click.UsageError(
                f"--draft-model: {engine.name} loads none by this method. Leave it out, or name another with --method."
            )
    texts = {name: text.encode() for name, text in made.emitted.files.items()}
    inputs = asked.inputs
    files = write_export(
        written,
        texts,
        inputs,
        lambda files: setting_provenance(engine, made, inputs, files, profile),
        force=asked.force,
    )
    _tell(setting_text(engine, made, written), made.warnings, files)


def _export_acceptance(target: "AcceptanceFormat", written: Path, asked: ExportOptions) -> None:
    from treeopt.engines.settings.provenance import acceptance_provenance
    from treeopt.planner.tokens import token_models
    from treeopt.records.profile import check_draft_model
    from treeopt.report.setting_text import acceptance_text

    if asked.path != asked.profile_path:
        raise TreeoptError(
            f"{asked.path}: expected a profile, whose acceptance is written. Got another file: name one."
        )
    profile = profile_for_category(load_profile(asked.path), asked.category)
    check_draft_model(profile, "acceptance")
    acceptance = profile.acceptance(rule=asked.rule, temperature=asked.temperature)
    if asked.context_tokens is not None:
        acceptance = token_models(profile, acceptance, raw=True).at(asked.context_tokens).acceptance
    text = target.write(acceptance, profile.pair, max_depth=asked.depth, method=asked.method)
    inputs = {"profile": asked.path}
    files = write_export(
        written,
        {MAIN: text.encode()},
        inputs,
        lambda files: acceptance_provenance(target.name, target.versions, inputs, files, profile),
        force=asked.force,
    )
    _tell(acceptance_text(target, acceptance), (), files)


def _tell(report: str, warnings: tuple[Warning, ...], files: list[Path]) -> None:
    """Say what was exported and what was written."""
    to_stdout = str(files[0]) == STANDARD_STREAM
    click.echo(report, err=to_stdout)
    for warning in warnings:
        warn(warning)
    if not to_stdout:
        click.echo(f"\nWritten to {', '.join(map(str, files))}.")
