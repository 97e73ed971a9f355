"""What `treeopt export` is asked: what is read, under which conditions, and what is written."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from treeopt.cli.options.inputs import (
    FORCE_ALL,
    PROFILE_PATH,
    TREE_NAME,
    file,
    is_profile,
    load_profile,
    output_option,
    read_any_tree,
    record_beside,
    tree_budget,
    tree_depth,
)
from treeopt.cli.options.plan import BATCH_SIZE, CATEGORY, CONTEXT_TOKENS, PROFILE_TEMPERATURE
from treeopt.cli.options.record import Heading, argument, given, option
from treeopt.cli.options.rule import measured_rule
from treeopt.cli.options.values import COUNT, TEXT, Names
from treeopt.cli.plan_profile import profile_for_category
from treeopt.files.whole_files import STANDARD_STREAM

if TYPE_CHECKING:
    from treeopt.engines.settings.source import Source
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile

SIZED = "a solution file or a profile"
CONDITIONS = ("rule", "temperature", "context_tokens", "batch_size", "category")
ALWAYS = ("target", "written", "force")
"""Options that every format and engine takes."""
WRITE_OPTIONS = {"name": "list_name", "max_depth": "heads"}
"""Options by the fields of `WriteOptions`."""


def _names() -> list[str]:
    """Return the names of all formats and engines."""
    from treeopt.engines import ENGINES
    from treeopt.engines.importers import ACCEPTANCE_FORMATS
    from treeopt.trees.formats import FORMATS

    return [
        *(each.name for each in FORMATS),
        *(each.name for each in ENGINES),
        *(each.name for each in ACCEPTANCE_FORMATS),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is read, under which conditions, and what is written."""

    path: Path = field(metadata=argument(type=file, metavar="FILE"))
    target: str = field(
        metadata=option(
            "--to",
            "target",
            type=Names("name", _names),
            required=True,
            metavar="NAME",
            help="Format or engine; --list shows all of them.",
        )
    )
    written: Path = field(
        metadata=output_option(
            "written",
            "File to write; - is standard output. Side files are written next to it: FILE.provenance.json and others.",
            metavar="FILE",
            default=Path(STANDARD_STREAM),
        )
    )
    profile_asked: Path = field(metadata=PROFILE_PATH)
    profile_named: bool = field(metadata=given("profile_path"))
    rule: str | None = field(
        metadata=measured_rule("Verification rule to predict for; by default the first in the profile.")
    )
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    context_tokens: int | None = field(metadata=CONTEXT_TOKENS)
    batch_size: int | None = field(metadata=BATCH_SIZE)
    category: str | None = field(metadata=CATEGORY)
    record_named: Path | None = field(
        metadata=option(
            "--record",
            "record_path",
            heading=Heading.PLANNED,
            type=file,
            help="Draft record; by default the one beside the profile.",
        )
    )
    no_record: bool = field(
        metadata=option(
            "--no-record",
            heading=Heading.PLANNED,
            is_flag=True,
            help="Plan chains only, even where a draft record is there.",
        )
    )
    draft_model: str | None = field(
        metadata=option(
            "--draft-model",
            heading=Heading.FORMAT,
            type=TEXT,
            metavar="MODEL",
            help="What the engine loads as draft model; by default as profiled.",
        )
    )
    method: str | None = field(
        metadata=option(
            "--method",
            heading=Heading.FORMAT,
            type=TEXT,
            metavar="NAME",
            help="The engine's name of the method; by default a separate draft model.",
        )
    )
    engine_version: str | None = field(
        metadata=option(
            "--engine-version",
            heading=Heading.FORMAT,
            type=TEXT,
            metavar="VERSION",
            help="Version that will read the file; by default the newest.",
        )
    )
    list_name: str | None = field(
        metadata=option(
            "--list-name",
            heading=Heading.FORMAT,
            type=TEXT,
            metavar="NAME",
            help="Name of the list in a Python module; by default treeopt_N.",
        )
    )
    heads: int | None = field(
        metadata=option(
            "--heads", heading=Heading.FORMAT, type=COUNT, help="Medusa heads of the model, and so its deepest tree."
        )
    )
    name: str | None = field(metadata=TREE_NAME)
    budget: int | None = field(metadata=tree_budget(SIZED))
    depth: int | None = field(metadata=tree_depth(SIZED))
    force: bool = field(metadata=FORCE_ALL)

    @property
    def profile_path(self) -> Path | None:
        """The profile: the file itself, the one that was named, or the one that lies there; None where there is none."""
        if is_profile(self.path):
            return self.path
        return self.profile_asked if self.profile_named or self.profile_asked.exists() else None

    @property
    def record_path(self) -> Path | None:
        """The draft record: the one that was named, or the one that was measured with the profile, if it is there.

        None for one category of prompts, because a record does not contain the categories of its texts.
        """
        if self.record_named is not None and self.category is not None:
            raise click.UsageError("--record with --category: a draft record has no categories. Leave one out.")
        if self.no_record or self.category is not None:
            return None
        if self.record_named is not None or self.profile_path is None:
            return self.record_named
        beside = record_beside(self.profile_path)
        return beside if beside.exists() else None

    @property
    def inputs(self) -> dict[str, Path]:
        """The files that are read, by what they are."""
        named = {"tree": self.path, "profile": self.profile_path, "record": self.record_path}
        return {name: path for name, path in named.items() if path and (name, path) != ("tree", self.profile_path)}

    @property
    def request(self) -> "PlanRequest":
        """What the planner is asked for."""
        from treeopt.planner import PlanRequest

        return PlanRequest(
            rule=self.rule,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            max_nodes=self.budget,
            max_depth=self.depth,
        )

    def options_of_tree(self) -> set[str]:
        """Return the options that choose the tree that FILE stands for."""
        return {"budget", "depth", *(CONDITIONS if is_profile(self.path) else ("name",))}

    def options_of_plan(self, *, records: bool, rule: bool) -> set[str]:
        """Return the options that plan the setting of an engine.

        Args:
            records: whether it drafts dynamic trees, which draft records are for.
            rule: whether it is told a rule even if nothing is planned.
        """
        taken = {"budget", "depth", *(() if is_profile(self.path) else ("name", "profile_path"))}
        if self.profile_path is None:
            return taken | ({"rule"} if rule else set())
        return taken | {*CONDITIONS, "no_record"} | ({"record_path"} if records else set())

    def refuse_others(self, taken: Collection[str]) -> None:
        """Raise click.UsageError for an option that was given and that is not among those which have an effect."""
        context = click.get_current_context()
        listed = [each for each in context.command.params if isinstance(each, click.Option)]
        flags = [each.opts[0] for each in listed if each.name in taken]
        source = "a profile" if is_profile(self.path) else "a tree"
        if source == "a tree" and self.profile_path is None:
            source = "a tree without a profile"
        for each in listed:
            given = context.get_parameter_source(str(each.name)) is not ParameterSource.DEFAULT
            if given and each.name not in {*taken, *ALWAYS}:
                flag = each.opts[0]
                raise click.UsageError(
                    f"{flag}: {self.target} from {source} takes {', '.join(flags)}. Leave {flag} out."
                )

    def tree(self) -> "TreeFile":
        """Return the tree to export: the file's own, or the fastest of a profile."""
        if self.path != self.profile_path:
            return read_any_tree(self.path, name=self.name, budget=self.budget, depth=self.depth)
        from treeopt.planner import best_drafter, drafter_choices, requested_plan, tree_file
        from treeopt.report.plan_text import plan_source

        profile = profile_for_category(load_profile(self.path), self.category)
        found = requested_plan(profile, self.request)
        best = None
        if not profile.has_draft_model:
            best = best_drafter(drafter_choices(profile, self.request, plan=found), self.request.objective)
        return tree_file(found, profile, source=plan_source(self.path, found, category=self.category), choice=best)

    def source(self, profile: "Profile | None", content: "TreeFile | None") -> "Source":
        """Return what a setting is made from."""
        from treeopt.engines.settings.source import Source
        from treeopt.records.draft_record import DraftRecord

        return Source(
            profile=profile,
            record=None if self.record_path is None else DraftRecord.load(self.record_path),
            tree=None if content is None else content.tree,
            drafter=None if content is None else content.drafter,
            promised=None if content is None else content.provenance,
            request=self.request,
            draft_model=self.draft_model,
            method=self.method,
            engine_version=self.engine_version,
        )
