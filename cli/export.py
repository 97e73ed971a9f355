"""`treeopt export`: a tree in another program's format, or an engine's settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.export_text import setting_text, topology_text
from treeopt.cli.format_list import list_option
from treeopt.cli.inputs import budget_option, depth_option, is_profile, name_option, read_any_tree
from treeopt.cli.options import file, load_profile, output, profile_options, record_beside
from treeopt.cli.plan_text import imported
from treeopt.cli.waiting import patience
from treeopt.files import STANDARD_STREAM, check_writable, write_bytes, write_text

if TYPE_CHECKING:
    from treeopt.engines.engine import Engine
    from treeopt.profile import Profile
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


@click.command()
@list_option
@click.argument("path", type=file, metavar="FILE")
@click.option("--to", "target", required=True, metavar="NAME", help="Format or engine; --list shows all of them.")
@click.option(
    "-o", "--output", "written", type=output, default=Path(STANDARD_STREAM), help="File to write; - is standard output."
)
@profile_options
@click.option(
    "--context-tokens", type=click.IntRange(min=1), help="Tokens in the cache; by default the first measured."
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Sequences decoded together; by default the first measured."
)
@click.option("--record", "record_path", type=file, help="Draft record; by default the one beside the profile.")
@click.option("--no-record", is_flag=True, help="Plan chains only, even where a draft record is there.")
@click.option("--draft-model", metavar="MODEL", help="What the engine loads as draft model; by default as profiled.")
@click.option("--method", metavar="NAME", help="The engine's name of the method; by default a separate draft model.")
@click.option("--engine-version", metavar="VERSION", help="Version that will read the file; by default the newest.")
@click.option("--list-name", metavar="NAME", help="Name of the list in a Python module; by default treeopt_N.")
@click.option("--heads", type=click.IntRange(min=1), help="Medusa heads of the model, and so its deepest tree.")
@name_option
@budget_option
@depth_option
@click.pass_context
def export(context: click.Context, /, target: str, written: Path, no_record: bool, **given: Any) -> None:
    """Write FILE for another program: a tree as it is, or the settings of an engine.

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
    _check_names({written: ""}, options)
    check_writable(written)
    if target in formats:
        _export_tree(formats[target], written, options)
    else:
        _export_setting(engines[target], written, options)


def _export_tree(target: "TopologyFormat", written: Path, options: ExportOptions) -> None:
    from treeopt.engines.provenance import topology_provenance
    from treeopt.trees.formats.topology import WriteOptions

    to_stdout = str(written) == STANDARD_STREAM
    if to_stdout and not target.text:
        raise click.UsageError(f"--output: a {target.name} file is not text. Name a file with -o.")
    content = options.tree()
    asked = WriteOptions(name=options.list_name, max_depth=options.heads, engine_version=options.engine_version)
    made = target.write(content.tree, asked, written.suffix.lower())
    files: dict[Path, str | bytes] = {written: made.data}
    if not to_stdout:
        files[_sidecar(written)] = topology_provenance(target, content, options.inputs)
    _finish(files, topology_text(target, content.tree), made.warnings)


def _export_setting(engine: "Engine", written: Path, options: ExportOptions) -> None:
    from treeopt.draft_record import DraftRecord
    from treeopt.engines.provenance import setting_provenance
    from treeopt.engines.setting import setting
    from treeopt.engines.source import Source

    profile: Profile | None = None if options.profile_path is None else load_profile(options.profile_path)
    source = Source(
        profile=profile,
        record=None if options.record_path is None else DraftRecord.load(options.record_path),
        tree=None if options.path == options.profile_path else options.tree().tree,
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
    main, *others = made.emitted.files
    files: dict[Path, str | bytes] = {written: main.text}
    if str(written) != STANDARD_STREAM:
        files |= {written.parent / each.name.replace("{stem}", written.stem): each.text for each in others}
        files[_sidecar(written)] = setting_provenance(engine, made, options.inputs, profile)
    elif others:
        names = ", ".join(each.name for each in others)
        click.echo(f"With -o FILE, {names} would be written beside it.", err=True)
    _check_names(files, options)
    _finish(files, setting_text(engine, made, written), made.warnings)


def _check_names(files: dict[Path, str | bytes], options: ExportOptions) -> None:
    """Refuse names under which a file beside the main one would overwrite what was read."""
    read = {path.resolve() for path in options.inputs.values()}
    for path in files:
        if path.resolve() in read:
            raise click.UsageError(f"--output: {path} is read, and would be overwritten. Choose another name.")


def _finish(files: dict[Path, str | bytes], report: str, warnings: tuple[str, ...]) -> None:
    """Write every file whole, then say what was written."""
    for path, content in files.items():
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            write_bytes(path, content)
        else:
            write_text(path, content)
    to_stdout = str(next(iter(files))) == STANDARD_STREAM
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


def _sidecar(written: Path) -> Path:
    from treeopt.engines.provenance import SUFFIX

    return written.with_name(written.name + SUFFIX)
