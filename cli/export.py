"""`treeopt export`: a tree in another program's format, or an engine's setting."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import OWN_PROFILE, check_models, identity_of
from treeopt.cli.options.inputs import (
    OTHER_MODELS,
    REPLACE_FILES,
    TreeChoiceOptions,
    file,
    force_option,
    is_profile,
    load_profile,
    output_option,
    profile_option,
    read_any_tree,
)
from treeopt.cli.options.plan import PointOptions, category_option
from treeopt.cli.options.record import (
    Heading,
    argument,
    flag_of,
    group,
    is_given,
    option,
    print_option,
    refuse_other_options,
)
from treeopt.cli.options.sampling import measured_rule_option
from treeopt.cli.options.values import COUNT, NAME, OneOf
from treeopt.cli.outputs import check_outputs, check_unnamed, default_record_path, is_stdout
from treeopt.cli.plan_profile import select_category
from treeopt.cli.terminal import print_result, progress, warn
from treeopt.engines import ENGINES
from treeopt.engines.exporters import speculation_profile
from treeopt.engines.exporters.choose import choose_setting
from treeopt.engines.exporters.common import loads_draft_model
from treeopt.engines.exporters.engine import MAIN, Engine
from treeopt.engines.exporters.provenance import acceptance_provenance, setting_provenance, topology_provenance
from treeopt.engines.exporters.setting import Source
from treeopt.errors import TreeoptError, Warning
from treeopt.files.atomic_files import STANDARD_STREAM, is_stream, write_bytes
from treeopt.planner import PlanRequest, best_drafter, drafter_choices, requested_plan, tree_file
from treeopt.planner.tokens import token_models
from treeopt.records.draft_record import DraftRecord
from treeopt.records.identity import Identity
from treeopt.records.profile import Profile, require_draft_model
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.export_text import acceptance_text, export_list, setting_text, topology_text
from treeopt.report.plan_text import plan_source
from treeopt.trees import TreeFile
from treeopt.trees.formats import FORMATS
from treeopt.trees.formats.topology import TopologyFormat

FORMATS_BY_NAME = {target.name: target for target in FORMATS}
ENGINES_BY_NAME = {target.name: target for target in ENGINES}
SIDECAR_SUFFIX = ".provenance.json"
WRITE_OPTIONS = {"suffix": "written", "list_name": "list_name", "max_depth": "heads"}
"""Options by arguments of `TopologyFormat.write`."""
CONDITIONS = ("rule", "temperature", "context_tokens", "batch_size", "category")
COMMON = ("target", "written", "force")
"""Options that apply to every format and engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPointOptions(PointOptions):
    rule: str | None = measured_rule_option(
        "Verification rule to predict for; by default the first lossless one in the profile, for a tree the best measured."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    path: Path = argument(type=file, metavar="FILE")
    target: str = option(
        "--to",
        type=OneOf("name", lambda: (*FORMATS_BY_NAME, *ENGINES_BY_NAME, speculation_profile.NAME)),
        required=True,
        help="Format or engine; --list shows all of them.",
    )
    written: Path = output_option(
        "File to write; - for standard output. Side files, such as FILE.provenance.json, are written next to it.",
        default=Path(STANDARD_STREAM),
    )
    profile: Path = profile_option()
    point: ExportPointOptions = group(ExportPointOptions)
    category: str | None = category_option()
    record: Path | None = Heading.PLANNED.option(
        "--record", type=file, help="Draft record; by default the one next to the profile."
    )
    no_record: bool = Heading.PLANNED.option(
        "--no-record", is_flag=True, help="Ignore the draft record and plan chains only."
    )
    draft_model: str | None = Heading.FORMAT.option(
        "--draft-model",
        type=NAME,
        metavar="MODEL",
        help="Draft model that the engine loads; by default the profiled one.",
    )
    method: str | None = Heading.FORMAT.option(
        "--method", type=NAME, help="The engine's name of the speculation method; by default a separate draft model."
    )
    engine_version: str | None = Heading.FORMAT.option(
        "--engine-version",
        type=NAME,
        metavar="VERSION",
        help="Version of the engine that reads the file; by default the newest known.",
    )
    list_name: str | None = Heading.FORMAT.option(
        "--list-name", type=NAME, help="Name of the list in a Python module; by default treeopt_N."
    )
    heads: int | None = Heading.FORMAT.option(
        "--heads", type=COUNT, help="Number of the model's Medusa heads, which limits the depth."
    )
    choice: TreeChoiceOptions = group(TreeChoiceOptions)
    force: bool = force_option(OTHER_MODELS, REPLACE_FILES)

    @property
    def profile_path(self) -> Path | None:
        """FILE if it is a profile, otherwise the file of `--profile`; None if that is the default and missing."""
        if is_profile(self.path):
            return self.path
        return self.profile if is_given("profile") or self.profile.exists() else None

    @property
    def record_path(self) -> Path | None:
        """The draft record, by default the one next to the profile; None if there is none, or for one category."""
        if self.record is not None and self.category is not None:
            raise click.UsageError("--record with --category: a draft record has no categories. Leave one out.")
        if self.no_record or self.category is not None:
            return None
        if self.record is not None or self.profile_path is None:
            return self.record
        default = default_record_path(self.profile_path)
        return default if default.exists() else None

    @property
    def inputs(self) -> dict[str, Path]:
        """The input files by kind."""
        paths = {"tree": self.path, "profile": self.profile_path, "record": self.record_path}
        return {kind: path for kind, path in paths.items() if path and (kind, path) != ("tree", self.profile_path)}

    @property
    def request(self) -> PlanRequest:
        return PlanRequest(
            **asdict(self.point),
            max_nodes=self.choice.max_nodes,
            max_depth=self.choice.max_depth,
            lossy=self.point.rule in LOSSY_RULES,  # allowed by naming it
        )

    def tree_options(self) -> set[str]:
        """Return the options that choose the tree of FILE."""
        return {"max_nodes", "max_depth", *(CONDITIONS if is_profile(self.path) else ("name",))}

    def plan_options(self, *, records: bool, rule: bool) -> set[str]:
        """Return the options that affect an engine's setting.

        Args:
            records: whether the engine drafts dynamic trees, which are planned from draft records.
            rule: whether the engine gets a rule without a plan too.
        """
        names = {"max_nodes", "max_depth", *(() if is_profile(self.path) else ("name", "profile"))}
        if self.profile_path is None:
            return names | ({"rule"} if rule else set())
        return names | {*CONDITIONS, "no_record"} | ({"record"} if records else set())

    def refuse_others(self, names: Collection[str]) -> None:
        """Raise click.UsageError for a given option that is not among `names`, those with an effect."""
        params = click.get_current_context().command.params
        source = "a profile" if is_profile(self.path) else "a tree"
        if source == "a tree" and self.profile_path is None:
            source = "a tree without a profile"
        flags = ", ".join(flag_of(param) for param in params if param.name in names)
        refuse_other_options({*names, *COMMON}, f"{self.target} from {source} takes {flags}. Leave it out.")


@click.command(cls=Command, record=ExportOptions)
@print_option("--list", export_list, "List all formats and engines, and exit.")
def export(args: ExportOptions) -> None:
    """Write a tree or a setting for another program.

    FILE is a tree in any known format, a solution file, or a profile, of which the fastest tree or setting is written.
    Settings are planned with the profile; without a profile, only the depth of the tree is used.
    """
    name = args.target
    export_target: Callable[[ExportOptions], None]
    if name in FORMATS_BY_NAME:
        takes = args.tree_options() | {WRITE_OPTIONS[field] for field in FORMATS_BY_NAME[name].takes}
        export_target = partial(_export_tree, FORMATS_BY_NAME[name])
    elif name in ENGINES_BY_NAME:
        engine = ENGINES_BY_NAME[name]
        takes = {*engine.takes, *args.plan_options(records=engine.dynamic, rule=engine.static)}
        export_target = partial(_export_setting, engine)
    else:
        takes = set(speculation_profile.TAKES)
        export_target = _export_acceptance
    args.refuse_others(takes)
    _check_files(args, [] if is_stream(args.written) else [args.written, _sidecar_path(args.written)])
    export_target(args)


def _export_tree(target: TopologyFormat, args: ExportOptions) -> None:
    if is_stdout(args.written) and not target.text:
        raise click.UsageError(f"--output: a {target.name} file is not text. Name a file with -o.")
    tree = _load_tree(args)
    if tree.drafter is not None and tree.drafter.builds_own_trees:
        raise TreeoptError(
            f"{args.path}: expected a tree to write. Got {tree.drafter.name}, which builds its own trees: "
            "export it to an engine that has this drafter, or plan with one of static trees."
        )
    values = {"suffix": args.written.suffix.lower(), "list_name": args.list_name, "max_depth": args.heads}
    content = target.write(tree.tree, **{name: values[name] for name in target.takes})
    files = _write_files(args, {MAIN: content}, lambda data: topology_provenance(target, tree, args.inputs, data))
    print_result(topology_text(target, tree.tree), files, warnings=_warn_drafter(target, tree))


def _warn_drafter(target: TopologyFormat, tree: TreeFile) -> list[Warning]:
    """Warn if the programs that read a format have no drafter like the one that the tree was planned for."""
    if tree.drafter is None or not target.drafters or tree.drafter.name in target.drafters:
        return []
    drafters = " or ".join("a draft model" if name == "model" else name for name in target.drafters)
    problem = f"the tree was planned for {tree.drafter.name}, but {target.title} drafts with {drafters} only."
    return [Warning(problem, "Solve again with such a drafter, or run this tree with treeopt run.")]


def _export_setting(engine: Engine, args: ExportOptions) -> None:
    profile = None if args.profile_path is None else _load_profile(args, args.profile_path)
    tree = None if args.path == args.profile_path else _load_tree(args)
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
    faster = [] if profile is None or tree is not None else _warn_of_faster_drafter(profile, args.request)
    print_result(setting_text(engine, result, args.written), files, warnings=[*result.warnings, *faster])


def _warn_of_faster_drafter(profile: Profile, request: PlanRequest) -> list[Warning]:
    """Warn if another drafter of a profile is the fastest, because settings are chosen for the draft model."""
    if not (profile.has_draft_model and profile.drafters):
        return []
    best = best_drafter(drafter_choices(profile, request), request.objective)
    if best.option.drafter.name == "model":
        return []
    description, speedup = best.option.drafter.description, best.option.speedup.value
    problem = f"{description} is {speedup:.2f} times as fast as plain decoding, and faster than the draft model."
    return [Warning(problem, "Export the tree file of treeopt solve instead.")]


def _export_acceptance(args: ExportOptions) -> None:
    if args.path != args.profile_path:
        raise TreeoptError(f"{args.path}: expected a profile, whose acceptance is written. Got another file: name one.")
    profile = _load_profile(args, args.path)
    require_draft_model(profile, "acceptance")
    acceptance = profile.acceptance(rule=args.point.rule, temperature=args.point.temperature)
    if args.point.context_tokens is not None:
        acceptance = token_models(profile, acceptance, raw=True).at(args.point.context_tokens).acceptance
    text = speculation_profile.render(acceptance, profile.pair, max_depth=args.choice.max_depth, method=args.method)
    inputs = {"profile": args.path}
    files = _write_files(args, {MAIN: text.encode()}, lambda data: acceptance_provenance(inputs, data, profile))
    print_result(acceptance_text(acceptance), files)


def _load_profile(args: ExportOptions, path: Path) -> Profile:
    return select_category(load_profile(path), args.category)


def _load_tree(args: ExportOptions) -> TreeFile:
    """Return the tree of FILE, for a profile the fastest."""
    if args.path != args.profile_path:
        return read_any_tree(args.path, args.choice)
    profile = _load_profile(args, args.path)
    plan = requested_plan(profile, args.request)
    for warning in plan.warnings:
        warn(warning)
    best = None
    if not profile.has_draft_model:
        best = best_drafter(drafter_choices(profile, args.request, plan=plan), args.request.objective)
    return tree_file(plan, profile, source=plan_source(args.path, plan, category=args.category), choice=best)


def _write_files(
    args: ExportOptions, contents: dict[str, bytes], provenance: Callable[[dict[str, bytes]], str]
) -> list[Path]:
    """Write the files of an export, each whole, and return their paths, the main file's first.

    Args:
        args: `written` is the main file; a stream gets nothing else.
        contents: by file name, in which `FILE` stands for the main file's name.
        provenance: returns the text of the sidecar for the contents by final names.
    """
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
