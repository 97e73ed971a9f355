"""`treeopt compare`: trees of any origin side by side under one profile."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import identity_of, warn_of_tree
from treeopt.cli.inputs import read_all_trees
from treeopt.cli.options import checked_rule, file, load_profile, lossy_option, profile_options
from treeopt.cli.values import COUNT
from treeopt.cli.waiting import patience
from treeopt.errors import printable
from treeopt.report.plan_text import heading


@click.command(cls=Command)
@click.argument("paths", type=file, metavar="FILE…", nargs=-1, required=True)
@partial(profile_options, rule_help="Verification rule to predict; by default the first in the profile.")
@click.option("--context-tokens", type=COUNT, help="Tokens in the cache; by default the first measured.")
@click.option("--batch-size", type=COUNT, help="Sequences decoded together; by default the first measured.")
@click.option("--raw", is_flag=True, help="Use acceptance as measured, ranks that rise by noise included.")
@lossy_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object instead of the table.")
def compare(
    paths: tuple[Path, ...],
    profile_path: Path,
    rule: str | None,
    temperature: float | None,
    lossy: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Predict trees of any origin beside the best ones.

    What the trees of each FILE come to on the profile's machine stands beside the fastest of their size, and of any.

    Trees may be in any known format (treeopt import --list); of a file that holds several, all are compared.
    """
    if rule is not None:
        checked_rule(rule, lossy=lossy)
    from treeopt.planner import plan, step_model
    from treeopt.planner.comparison import compare as compare_trees
    from treeopt.report.comparison import ComparisonReport, comparison_table
    from treeopt.report.json_text import json_text

    profile = load_profile(profile_path)
    trees = [(path, each) for path in paths for each in read_all_trees(path)]
    for path, each in trees:
        warn_of_tree(path, each.provenance, identity_of(profile))
    named = [(_label(path, each.name), each.tree) for path, each in trees]
    model = step_model(profile, rule=rule, temperature=temperature, **where)
    with patience("solving"):
        compared = compare_trees(model, [tree for _, tree in named])
        acceptance = model.acceptance
        best = plan(
            profile,
            model.costs.max_nodes,
            rule=acceptance.rule,
            temperature=acceptance.temperature,
            lossy=lossy,
            **where,
        )
    labels = [label for label, _ in named]
    if as_json:
        click.echo(json_text(ComparisonReport.of(labels, compared, best)))
    else:
        click.echo(f"{heading(best, profile)}\n\n{comparison_table(labels, compared, best)}")


def _label(path: Path, name: str | None) -> str:
    return printable(path.name if name is None else f"{path.name}: {name}")
