"""Options of `treeopt export`: what is read, at which operating point, and what is written."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import click

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
from treeopt.cli.options.plan import batch_size_option, category_option, context_tokens_option, temperature_option
from treeopt.cli.options.record import Heading, argument, flag_of, group, is_given, option, refuse_other_options
from treeopt.cli.options.sampling import measured_rule_option
from treeopt.cli.options.values import COUNT, NAME, OneOf
from treeopt.cli.outputs import default_record_path
from treeopt.cli.plan_profile import select_category
from treeopt.cli.terminal import warn
from treeopt.files.atomic_files import STANDARD_STREAM
from treeopt.planner import PlanRequest, best_drafter, drafter_choices, requested_plan, tree_file
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.plan_text import plan_source
from treeopt.trees import TreeFile

CONDITIONS = ("rule", "temperature", "context_tokens", "batch_size", "category")
COMMON = ("target", "written", "force")
"""Options that apply to every format and engine."""


def _target_names() -> list[str]:
    from treeopt.engines import ENGINES
    from treeopt.engines.exporters import speculation_profile
    from treeopt.trees.formats import FORMATS

    names = [tree_format.name for tree_format in FORMATS] + [engine.name for engine in ENGINES]
    return [*names, speculation_profile.NAME]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    path: Path = argument(type=file, metavar="FILE")
    target: str = option(
        "--to",
        type=OneOf("name", _target_names),
        required=True,
        metavar="NAME",
        help="Format or engine; --list shows all of them.",
    )
    written: Path = output_option(
        "File to write; - for standard output. Side files, such as FILE.provenance.json, are written next to it.",
        default=Path(STANDARD_STREAM),
    )
    profile: Path = profile_option()
    rule: str | None = measured_rule_option(
        "Verification rule to predict for; by default the first lossless one in the profile, for a tree the best measured."
    )
    temperature: float | None = temperature_option()
    context_tokens: int | None = context_tokens_option()
    batch_size: int | None = batch_size_option()
    category: str | None = category_option()
    record: Path | None = option(
        "--record",
        heading=Heading.PLANNED,
        type=file,
        help="Draft record; by default the one next to the profile.",
    )
    no_record: bool = option(
        "--no-record", heading=Heading.PLANNED, is_flag=True, help="Ignore the draft record and plan chains only."
    )
    draft_model: str | None = option(
        "--draft-model",
        heading=Heading.FORMAT,
        type=NAME,
        metavar="MODEL",
        help="Draft model that the engine loads; by default the profiled one.",
    )
    method: str | None = option(
        "--method",
        heading=Heading.FORMAT,
        type=NAME,
        metavar="NAME",
        help="The engine's name of the speculation method; by default a separate draft model.",
    )
    engine_version: str | None = option(
        "--engine-version",
        heading=Heading.FORMAT,
        type=NAME,
        metavar="VERSION",
        help="Version of the engine that reads the file; by default the newest known.",
    )
    list_name: str | None = option(
        "--list-name",
        heading=Heading.FORMAT,
        type=NAME,
        metavar="NAME",
        help="Name of the list in a Python module; by default treeopt_N.",
    )
    heads: int | None = option(
        "--heads",
        heading=Heading.FORMAT,
        type=COUNT,
        help="Number of the model's Medusa heads, which limits the depth.",
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
            rule=self.rule,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            max_nodes=self.choice.max_nodes,
            max_depth=self.choice.max_depth,
            lossy=self.rule in LOSSY_RULES,  # allowed by naming it
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

    def load_tree(self) -> TreeFile:
        """Return the tree of FILE, for a profile the fastest."""
        if self.path != self.profile_path:
            return read_any_tree(self.path, self.choice)
        profile = select_category(load_profile(self.path), self.category)
        plan = requested_plan(profile, self.request)
        for warning in plan.warnings:
            warn(warning)
        best = None
        if not profile.has_draft_model:
            best = best_drafter(drafter_choices(profile, self.request, plan=plan), self.request.objective)
        return tree_file(plan, profile, source=plan_source(self.path, plan, category=self.category), choice=best)
