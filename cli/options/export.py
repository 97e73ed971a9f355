"""What `treeopt export` is asked: what is read, under which conditions, and what is written."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.options.inputs import (
    FORCE_ALL,
    PROFILE_PATH,
    TREE_NAME,
    file,
    is_profile,
    load_profile,
    output,
    read_any_tree,
    record_beside,
    tree_budget,
    tree_depth,
)
from treeopt.cli.options.plan import BATCH_SIZE, CONTEXT_TOKENS, PROFILE_TEMPERATURE
from treeopt.cli.options.record import argument, given, option
from treeopt.cli.options.rule import measured_rule
from treeopt.cli.options.values import COUNT, TEXT, Names
from treeopt.files.whole_files import STANDARD_STREAM

if TYPE_CHECKING:
    from treeopt.engines.settings.source import Source
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile

SIZED = "a solution file or a profile"


def _names() -> list[str]:
    """Return the names of all formats and engines."""
    from treeopt.engines import ENGINES
    from treeopt.engines.reports import ACCEPTANCE_FORMATS
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
        metadata=option(
            "-o",
            "--output",
            "written",
            type=output,
            metavar="FILE",
            default=Path(STANDARD_STREAM),
            help="File to write; - is standard output. Side files are written next to it: FILE.provenance.json and others.",
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
    record_named: Path | None = field(
        metadata=option(
            "--record", "record_path", type=file, help="Draft record; by default the one beside the profile."
        )
    )
    no_record: bool = field(
        metadata=option("--no-record", is_flag=True, help="Plan chains only, even where a draft record is there.")
    )
    draft_model: str | None = field(
        metadata=option(
            "--draft-model",
            type=TEXT,
            metavar="MODEL",
            help="What the engine loads as draft model; by default as profiled.",
        )
    )
    method: str | None = field(
        metadata=option(
            "--method",
            type=TEXT,
            metavar="NAME",
            help="The engine's name of the method; by default a separate draft model.",
        )
    )
    engine_version: str | None = field(
        metadata=option(
            "--engine-version",
            type=TEXT,
            metavar="VERSION",
            help="Version that will read the file; by default the newest.",
        )
    )
    list_name: str | None = field(
        metadata=option(
            "--list-name",
            type=TEXT,
            metavar="NAME",
            help="Name of the list in a Python module; by default treeopt_N.",
        )
    )
    heads: int | None = field(
        metadata=option("--heads", type=COUNT, help="Medusa heads of the model, and so its deepest tree.")
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
        """The draft record: the one that was named, or the one that was measured with the profile, if it is there."""
        if self.no_record:
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
        from treeopt.planner import PlanRequest, Where

        return PlanRequest(
            rule=self.rule,
            temperature=self.temperature,
            where=Where(context_tokens=self.context_tokens, batch_size=self.batch_size),
            max_nodes=self.budget,
            max_depth=self.depth,
        )

    def tree(self) -> "TreeFile":
        """Return the tree to export: the file's own, or the fastest of a profile."""
        if self.path != self.profile_path:
            return read_any_tree(self.path, name=self.name, budget=self.budget, depth=self.depth)
        from treeopt.planner import best_drafter, drafter_choices, requested_plan, tree_file
        from treeopt.report.plan_text import plan_source

        profile = load_profile(self.path)
        found = requested_plan(profile, self.request)
        best = None
        if not profile.has_draft_model:
            best = best_drafter(drafter_choices(profile, self.request, plan=found), self.request.objective)
        return tree_file(found, profile, source=plan_source(self.path, found), choice=best)

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
