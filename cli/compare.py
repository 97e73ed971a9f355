"""`treeopt compare`: trees of any origin side by side under one profile."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import identity_of, warn_of_other
from treeopt.cli.options.inputs import PROFILE_PATH, file, load_profile, read_all_trees
from treeopt.cli.options.plan import BATCH_SIZE, CATEGORY, CONTEXT_TOKENS, PROFILE_TEMPERATURE, RAW
from treeopt.cli.options.record import argument, option, options
from treeopt.cli.options.rule import LOSSY, checked_rule, measured_rule
from treeopt.cli.plan_profile import profile_for_category
from treeopt.cli.waiting import patience
from treeopt.errors import TreeoptError, printable
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Which trees, under which profile and where."""

    paths: tuple[Path, ...] = field(metadata=argument(type=file, metavar="FILE…", nargs=-1, required=True))
    profile_path: Path = field(metadata=PROFILE_PATH)
    rule: str | None = field(
        metadata=measured_rule("Verification rule to predict; by default the first in the profile.")
    )
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    context_tokens: int | None = field(metadata=CONTEXT_TOKENS)
    batch_size: int | None = field(metadata=BATCH_SIZE)
    category: str | None = field(metadata=CATEGORY)
    raw: bool = field(metadata=RAW)
    lossy: bool = field(metadata=LOSSY)
    as_json: bool = field(
        metadata=option(
            "--json", "as_json", is_flag=True, help="Print everything as one JSON object instead of the table."
        )
    )

    @property
    def request(self) -> "PlanRequest":
        """What the planner is asked for."""
        from treeopt.planner import PlanRequest

        return PlanRequest(
            rule=self.rule,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            raw=self.raw,
            lossy=self.lossy,
        )


@click.command(cls=Command)
@options(CompareOptions)
def compare(asked: CompareOptions) -> None:
    """Predict trees of any origin beside the best ones.

    What the trees of each FILE come to on the profile's machine stands beside the fastest of their size, and of any.

    Trees may be in any known format (treeopt import --list); of a file that holds several, all are compared.
    """
    if asked.rule is not None:
        checked_rule(asked.rule, lossy=asked.lossy)
    from treeopt.planner import requested_model, requested_plan
    from treeopt.planner.comparison import compare as compare_trees
    from treeopt.records.profile import check_draft_model
    from treeopt.report.comparison import comparison_json, comparison_text

    profile, request = profile_for_category(load_profile(asked.profile_path), asked.category), asked.request
    check_draft_model(profile, "compare")
    trees = _trees(asked.paths, profile)
    model = requested_model(profile, request)
    with patience("solving"):
        compared = compare_trees(model, [content.tree for _, content in trees])
        acceptance = model.acceptance
        planned = replace(
            request, rule=acceptance.rule, temperature=acceptance.temperature, max_nodes=model.costs.max_nodes
        )
        best = requested_plan(profile, planned)
    labels = [label for label, _ in trees]
    if asked.as_json:
        click.echo(comparison_json(labels, compared, best))
    else:
        click.echo(comparison_text(labels, compared, best, profile))


def _trees(paths: tuple[Path, ...], profile: "Profile") -> "list[tuple[str, TreeFile]]":
    """Return the label and content of every tree of `paths`; warn of trees planned for another pair than the profile's.

    Raises TreeoptError for one that something else than the draft model drafts.
    """
    from treeopt.records.identity import Identity

    trees = [(path, name, content) for path in paths for name, content in read_all_trees(path).items()]
    for path, _, content in trees:
        if content.drafter is not None:
            raise TreeoptError(
                f"{path}: expected a tree of the draft model, whose acceptance is compared by. Got one of "
                f"{content.drafter.name}: compare drafters with treeopt solve, or run treeopt bench tree {quoted(path)}."
            )
        warn_of_other(f"{path} was planned for", Identity.planned_for(content.provenance), identity_of(profile))
    return [(_label(path, name), content) for path, name, content in trees]


def _label(path: Path, name: str | None) -> str:
    return printable(path.name if name is None else f"{path.name}: {name}")
