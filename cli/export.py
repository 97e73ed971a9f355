"""`treeopt export`: a tree in another program's format, or an engine's setting."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import OWN_PROFILE, check_models, identity_of
from treeopt.cli.options.export import ExportOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.cli.options.record import list_option, options
from treeopt.cli.outputs import check_outputs, check_unnamed, is_stdout
from treeopt.cli.plan_profile import select_category
from treeopt.cli.terminal import print_result, progress
from treeopt.errors import TreeoptError, Warning
from treeopt.files.atomic_files import is_stream, write_bytes
from treeopt.records.identity import Identity
from treeopt.records.profile import require_draft_model

if TYPE_CHECKING:
    from treeopt.engines.exporters.engine import Engine
    from treeopt.trees import TreeFile
    from treeopt.trees.formats.topology import TopologyFormat

SIDECAR_SUFFIX = ".provenance.json"
WRITE_OPTIONS = {"suffix": "written", "list_name": "list_name", "max_depth": "heads"}
"""Options by arguments of `TopologyFormat.write`."""


def _describe_formats() -> str:
    from treeopt.report.export_text import export_list

    return export_list()


@click.command(cls=Command)
@list_option(_describe_formats, "List all formats and engines, and exit.")
@options(ExportOptions)
def export(args: ExportOptions) -> None:
    """Write a tree or a setting for another program.

    FILE is a tree in any known format, a solution file, or a profile, of which the fastest tree or setting is written.
    Settings are planned with the profile; without a profile, only the depth of the tree is used.
    """
    from treeopt.engines import ENGINES
    from treeopt.engines.exporters import speculation_profile
    from treeopt.trees.formats import FORMATS

    formats, engines = {target.name: target for target in FORMATS}, {target.name: target for target in ENGINES}
    name = args.target
    export_target: Callable[[ExportOptions], None]
    if name in formats:
        takes = args.tree_options() | {WRITE_OPTIONS[field] for field in formats[name].takes}
        export_target = partial(_export_tree, formats[name])
    elif name in engines:
        engine = engines[name]
        takes = {*engine.takes, *args.plan_options(records=engine.dynamic, rule=engine.static)}
        export_target = partial(_export_setting, engine)
    else:
        takes = set(speculation_profile.TAKES)
        export_target = _export_acceptance
    args.refuse_others(takes)
    _check_files(args, [] if is_stream(args.written) else [args.written, _sidecar_path(args.written)])
    export_target(args)


def _export_tree(target: "TopologyFormat", args: ExportOptions) -> None:
    from treeopt.engines.exporters.engine import MAIN
    from treeopt.engines.exporters.provenance import topology_provenance
    from treeopt.report.export_text import topology_text

    if is_stdout(args.written) and not target.text:
        raise click.UsageError(f"--output: a {target.name} file is not text. Name a file with -o.")
    tree = args.load_tree()
    if tree.drafter is not None and tree.drafter.builds_own_trees:
        raise TreeoptError(
            f"{args.path}: expected a tree to write. Got {tree.drafter.name}, which builds its own trees: "
            "export it to an engine that has this drafter, or plan with one of static trees."
        )
    values = {"suffix": args.written.suffix.lower(), "list_name": args.list_name, "max_depth": args.heads}
    content = target.write(tree.tree, **{name: values[name] for name in target.takes})
    files = _write_files(args, {MAIN: content}, lambda data: topology_provenance(target, tree, args.inputs, data))
    print_result(topology_text(target, tree.tree), files, warnings=_warn_drafter(target, tree))


def _warn_drafter(target: "TopologyFormat", tree: "TreeFile") -> list[Warning]:
    """Warn if the programs that read a format have no drafter like the one that the tree was planned for."""
    if tree.drafter is None or not target.drafters or tree.drafter.name in target.drafters:
        return []
    drafters = " or ".join("a draft model" if name == "model" else name for name in target.drafters)
    problem = f"the tree was planned for {tree.drafter.name}, but {target.title} drafts with {drafters} only."
    return [Warning(problem, "Solve again with such a drafter, or run this tree with treeopt run.")]


def _export_setting(engine: "Engine", args: ExportOptions) -> None:
    from treeopt.engines.exporters.choose import choose_setting
    from treeopt.engines.exporters.common import loads_draft_model
    from treeopt.engines.exporters.provenance import setting_provenance
    from treeopt.engines.exporters.setting import Source
    from treeopt.records.draft_record import DraftRecord
    from treeopt.report.export_text import setting_text

    profile = None
    if args.profile_path is not None:
        profile = select_category(load_profile(args.profile_path), args.category)
    tree = None if args.path == args.profile_path else args.load_tree()
    if tree is not None and tree.drafter is not None:  # written as in its file, without planning
        args.refuse_others({*engine.takes, "name", "max_nodes", "max_depth", "profile"})
    if tree is not None and profile is not None:
        planned = Identity.from_provenance(tree.provenance)
        check_models(args.path, planned, identity_of(profile), force=args.force, remedy=OWN_PROFILE)
    source = Source(
        profile=profile,
        record=None if args.record_path is None else DraftRecord.load(args.record_path),
        tree_file=tree,
        request=args.request,
        draft_model=args.draft_model,
        method=args.method,
        engine_version=args.engine_version,
    )
    with progress("planning the setting"):
        result = choose_setting(engine, source)
    if args.draft_model is not None and result.request is not None and not loads_draft_model(engine, result.request):
        raise click.UsageError(
            f"--draft-model: {engine.name} loads none by this method. Leave it out, or name another with --method."
        )
    contents = {name: text.encode() for name, text in result.output.files.items()}
    files = _write_files(args, contents, lambda data: setting_provenance(engine, result, args.inputs, data, profile))
    print_result(setting_text(engine, result, args.written), files, warnings=result.warnings)


def _export_acceptance(args: ExportOptions) -> None:
    from treeopt.engines.exporters import speculation_profile
    from treeopt.engines.exporters.engine import MAIN
    from treeopt.engines.exporters.provenance import acceptance_provenance
    from treeopt.planner.tokens import token_models
    from treeopt.report.export_text import acceptance_text

    if args.path != args.profile_path:
        raise TreeoptError(f"{args.path}: expected a profile, whose acceptance is written. Got another file: name one.")
    profile = select_category(load_profile(args.path), args.category)
    require_draft_model(profile, "acceptance")
    acceptance = profile.acceptance(rule=args.rule, temperature=args.temperature)
    if args.context_tokens is not None:
        acceptance = token_models(profile, acceptance, raw=True).at(args.context_tokens).acceptance
    text = speculation_profile.render(acceptance, profile.pair, max_depth=args.choice.max_depth, method=args.method)
    inputs = {"profile": args.path}
    files = _write_files(args, {MAIN: text.encode()}, lambda data: acceptance_provenance(inputs, data, profile))
    print_result(acceptance_text(acceptance), files)


def _write_files(
    args: ExportOptions, contents: dict[str, bytes], provenance: Callable[[dict[str, bytes]], str]
) -> list[Path]:
    """Write the files of an export, each whole, and return their paths, the main file's first.

    Args:
        args: `written` is the main file; a stream gets nothing else.
        contents: by file name, in which `FILE` stands for the main file's name.
        provenance: returns the text of the sidecar for the contents by final names.
    """
    from treeopt.engines.exporters.engine import MAIN

    written = args.written
    if is_stream(written):
        if others := ", ".join(name for name in contents if name != MAIN):
            click.echo(f"With -o FILE, {others} would be written next to it.", err=True)
        write_bytes(written, contents[MAIN])
        return [written]
    named = {name.replace(MAIN, written.name): data for name, data in contents.items()}
    files = {written.parent / name: data for name, data in named.items()}
    files[_sidecar_path(written)] = provenance(named).encode()
    _check_files(args, list(files))
    for path in files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TreeoptError(f"{path.parent}: cannot be created ({error.strerror}). Choose another output.") from None
    for path, data in files.items():
        write_bytes(path, data)
    return list(files)


def _check_files(args: ExportOptions, files: Sequence[Path]) -> None:
    """Check the files of an export; raises TreeoptError for an input from a pipe, and as the checks of outputs do."""
    for path in args.inputs.values():
        if is_stream(path):
            raise TreeoptError(
                f"{path}: expected a file, because its checksum is noted in {SIDECAR_SUFFIX}. Got a pipe or a device: "
                "save it first."
            )
    check_outputs(
        [("--output", path) for path in files if path.parent.is_dir()],
        [(f"--{kind}", path) for kind, path in args.inputs.items()],
    )
    check_unnamed([path for path in files if path != args.written], force=args.force)


def _sidecar_path(written: Path) -> Path:
    """Return the file that lists the inputs and all files of an export."""
    return written.with_name(written.name + SIDECAR_SUFFIX)
