"""`treeopt compare`: predictions for given trees next to the best ones."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import OWN_PROFILE, identity_of, warn_of_differences
from treeopt.cli.options.inputs import file, json_option, load_profile, profile_option, read_all_trees
from treeopt.cli.options.plan import PointOptions, category_option, raw_option
from treeopt.cli.options.record import argument, group
from treeopt.cli.options.sampling import lossy_option
from treeopt.cli.plan_profile import select_category
from treeopt.cli.terminal import progress, warn
from treeopt.errors import TreeoptError, printable
from treeopt.planner import PlanRequest, requested_plan, step_model
from treeopt.planner.comparison import compare as compare_trees
from treeopt.records.identity import Identity
from treeopt.records.profile import Profile, require_draft_model
from treeopt.report.comparison import comparison_json, comparison_text
from treeopt.report.plan_warnings import context_warnings, plan_warnings
from treeopt.report.text import quoted
from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    paths: tuple[Path, ...] = argument(type=file, metavar="FILE…", nargs=-1, required=True)
    profile_path: Path = profile_option()
    point: PointOptions = group(PointOptions)
    category: str | None = category_option()
    raw: bool = raw_option()
    lossy: bool = lossy_option()
    as_json: bool = json_option()


@click.command(cls=Command, record=CompareOptions)
def compare(args: CompareOptions) -> None:
    """Predict given trees next to the best ones.

    For each tree, prints its predicted speed under the profile, the fastest tree of the same size, and the fastest of any
    size.  FILE is a tree in any known format (treeopt import --list); if it has several trees, all are compared.
    """
    profile = select_category(load_profile(args.profile_path), args.category)
    require_draft_model(profile, "compare")
    request = PlanRequest(**asdict(args.point), raw=args.raw, lossy=args.lossy)
    labels, trees = _load_trees(args.paths, profile)
    model = step_model(profile, request)
    with progress("solving"):
        compared = compare_trees(model, [tree.tree for tree in trees])
        rule, temperature = model.acceptance.rule, model.acceptance.temperature
        best = requested_plan(profile, replace(request, rule=rule, temperature=temperature))
    warnings = [*plan_warnings(best), *context_warnings(best, profile)]
    if args.as_json:
        click.echo(comparison_json(labels, compared, best, profile, warnings))
    else:
        click.echo(comparison_text(labels, compared, best, profile))
    for warning in warnings:
        warn(warning)


def _load_trees(paths: tuple[Path, ...], profile: Profile) -> tuple[list[str], list[TreeFile]]:
    """Return labels and trees of all files; warns of trees that were planned for another pair than the profile's.

    Raises TreeoptError for the tree of a drafter other than the draft model.
    """
    labels, trees = [], []
    for path in paths:
        for name, tree in read_all_trees(path).items():
            if tree.drafter is not None:
                raise TreeoptError(
                    f"{path}: expected a tree of the draft model, whose acceptance is compared by. Got one of "
                    f"{tree.drafter.name}: compare drafters with treeopt solve, or run treeopt bench tree {quoted(path)}."
                )
            warn_of_differences(path, Identity.from_provenance(tree.provenance), identity_of(profile), OWN_PROFILE)
            labels.append(printable(path.name if name is None else f"{path.name}: {name}"))
            trees.append(tree)
    return labels, trees
