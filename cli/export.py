"""`treeopt export`: a tree in another program's format, or an engine's settings."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.command import Command
from treeopt.cli.export_files import MAIN, check_export, sidecar_of, write_export
from treeopt.cli.export_text import setting_text, topology_text
from treeopt.cli.format_list import list_option
from treeopt.cli.identity import identity_of, warn_of_tree
from treeopt.cli.inputs import is_profile, read_any_tree, tree_options
from treeopt.cli.options import file, load_profile, output, profile_options, record_beside
from treeopt.cli.plan_text import imported
from treeopt.cli.values import COUNT, TEXT, Names
from treeopt.cli.waiting import patience
from treeopt.files.whole_files import STANDARD_STREAM, is_stream

if TYPE_CHECKING:
    from treeopt.engines.engine import Engine
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile
    from treeopt.trees.formats.topology import TopologyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is read and under which conditions."""

    path: Path
    name: str | None
    budget: int | None
    depth: int | None
    profile_path: Path | None
    record_path: Path | None
    rule: str | None
    temperature: float | None
    context_tokens: int | None
    batch_size: int | None
    draft_model: str | None
    method: str | None
    engine_version: str | None
    heads: int | None
    list_name: str | None

    @property
    def inputs(self) -> dict[str, Path]:
        """The files that are read, by what they are."""
        named = {"tree": self.path, "profile": self.profile_path, "record": self.record_path}
        return {name: path for name, path in named.items() if path and (name, path) != ("tree", self.profile_path)}

    def tree(self) -> "TreeFile":
        """Return the tree to export: the file's own, or the fastest of a profile."""
        if self.path != self.profile_path:
            return read_any_tree(self.path, name=self.name, budget=self.budget, depth=self.depth)
        from treeopt.planner import largest_pass, plan, tree_file

        profile = load_profile(self.path)
        where: dict[str, Any] = {
            "rule": self.rule,
            "temperature": self.temperature,
            "context_tokens": self.context_tokens,
            "batch_size": self.batch_size,
        }
        found = plan(profile, self.budget or largest_pass(profile, **where), max_depth=self.depth, **where)
        return tree_file(found, profile, source="; ".join(filter(None, [str(self.path), imported(found)])))


def _names() -> list[str]:
    """Return the names of all formats and engines."""
    from treeopt.engines import ENGINES
    from treeopt.trees.formats import FORMATS

    return [*(each.name for each in FORMATS), *(each.name for each in ENGINES)]


@click.command(cls=Command)
@list_option
@click.argument("path", type=file, metavar="FILE")
@click.option(
    "--to",
    "target",
    type=Names("name", _names),
    required=True,
    metavar="NAME",
    help="Format or engine; --list shows all of them.",
)
@click.option(
    "-o",
    "--output",
    "written",
    type=output,
    metavar="FILE",
    default=Path(STANDARD_STREAM),
    help="File to write; - is standard output. What belongs to it is put beside it, as FILE.provenance.json and the like.",
)
@partial(profile_options, rule_help="Verification rule to predict for; by default the first in the profile.")
@click.option("--context-tokens", type=COUNT, help="Tokens in the cache; by default the first measured.")
@click.option("--batch-size", type=COUNT, help="Sequences decoded together; by default the first measured.")
@click.option("--record", "record_path", type=file, help="Draft record; by default the one beside the profile.")
@click.option("--no-record", is_flag=True, help="Plan chains only, even where a draft record is there.")
@click.option(
    "--draft-model", type=TEXT, metavar="MODEL", help="What the engine loads as draft model; by default as profiled."
)
@click.option(
    "--method", type=TEXT, metavar="NAME", help="The engine's name of the method; by default a separate draft model."
)
@click.option(
    "--engine-version", type=TEXT, metavar="VERSION", help="Version that will read the file; by default the newest."
)
@click.option(
    "--list-name", type=TEXT, metavar="NAME", help="Name of the list in a Python module; by default treeopt_N."
)
@click.option("--heads", type=COUNT, help="Medusa heads of the model, and so its deepest tree.")
@tree_options("a solution file or a profile")
@click.pass_context
def export(context: click.Context, /, target: str, written: Path, no_record: bool, **given: Any) -> None:
    """Write a tree or a setting for another program.

    FILE is a tree in any known format, a solution file, or a profile, whose fastest tree or setting is then taken.
    Settings are planned with the profile; without one only the depth of the tree is carried over.
    """
    from treeopt.engines import ENGINES
    from treeopt.trees.formats import FORMATS

    formats, engines = {each.name: each for each in FORMATS}, {each.name: each for each in ENGINES}
    if target not in formats and target not in engines:
        raise click.UsageError(f"--to: expected one of {', '.join([*formats, *engines])}. Got {target!r}.")
    path, profile_path = given["path"], given["profile_path"]
    if is_profile(path):
        given["profile_path"] = path
    elif context.get_parameter_source("profile_path") == click.core.ParameterSource.DEFAULT:
        given["profile_path"] = profile_path if profile_path.exists() else None
    given["record_path"] = None if no_record else given["record_path"] or _record_there(given["profile_path"])
    options = ExportOptions(**given)
    check_export(written, [] if is_stream(written) else [written, sidecar_of(written)], options.inputs)
    if target in formats:
        _export_tree(formats[target], written, options)
    else:
        _export_setting(engines[target], written, options)


def _export_tree(target: "TopologyFormat", written: Path, options: ExportOptions) -> None:
    from treeopt.engines.settings.provenance import topology_provenance
    from treeopt.trees.formats.topology import WriteOptions

    if str(written) == STANDARD_STREAM and not target.text:
        raise click.UsageError(f"--output: a {target.name} file is not text. Name a file with -o.")
    content = options.tree()
    asked = WriteOptions(name=options.list_name, max_depth=options.heads, engine_version=options.engine_version)
    made = target.write(content.tree, asked, written.suffix.lower())
    inputs = options.inputs
    files = write_export(
        written, {MAIN: made.data}, inputs, lambda files: topology_provenance(target, content, inputs, files)
    )
    _tell(topology_text(target, content.tree), made.warnings, files)


def _export_setting(engine: "Engine", written: Path, options: ExportOptions) -> None:
    from treeopt.engines.settings.provenance import setting_provenance
    from treeopt.engines.settings.setting import setting
    from treeopt.engines.settings.source import Source
    from treeopt.records.draft_record import DraftRecord

    profile: Profile | None = None if options.profile_path is None else load_profile(options.profile_path)
    content = None if options.path == options.profile_path else options.tree()
    if content is not None and profile is not None:
        warn_of_tree(options.path, content.provenance, identity_of(profile))
    source = Source(
        profile=profile,
        record=None if options.record_path is None else DraftRecord.load(options.record_path),
        tree=None if content is None else content.tree,
        rule=options.rule,
        temperature=options.temperature,
        context_tokens=options.context_tokens,
        batch_size=options.batch_size,
        max_nodes=options.budget,
        max_depth=options.depth,
        draft_model=options.draft_model,
        method=options.method,
        engine_version=options.engine_version,
    )
    with patience("replaying the record under every setting"):
        made = setting(engine, source)
    texts = {each.name or MAIN: each.text.encode() for each in made.emitted.files}
    inputs = options.inputs
    files = write_export(written, texts, inputs, lambda files: setting_provenance(engine, made, inputs, files, profile))
    _tell(setting_text(engine, made, written), made.warnings, files)


def _tell(report: str, warnings: tuple[str, ...], files: list[Path]) -> None:
    """Say what was exported and what was written."""
    to_stdout = str(files[0]) == STANDARD_STREAM
    click.echo(report, err=to_stdout)
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    if not to_stdout:
        click.echo(f"\nWritten to {', '.join(map(str, files))}.")


def _record_there(profile_path: Path | None) -> Path | None:
    """Return the draft record that was measured with a profile, if it is there."""
    if profile_path is None:
        return None
    beside = record_beside(profile_path)
    return beside if beside.exists() else None
