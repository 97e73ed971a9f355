"""`treeopt compare`: trees of any origin side by side under one profile."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import identity_of, warn_of_tree
from treeopt.cli.inputs import read_all_trees
from treeopt.cli.options import checked_rule, file, load_profile, lossy_option, profile_options
from treeopt.cli.plan_text import heading
from treeopt.cli.table import Column, aligned
from treeopt.cli.text import milliseconds
from treeopt.cli.values import COUNT
from treeopt.cli.waiting import patience
from treeopt.errors import printable

if TYPE_CHECKING:
    from treeopt.planner import Candidate, Plan
    from treeopt.planner.comparison import ComparedTree

HEADER = ("", "nodes", "depth", "tokens/step", "step, ms", "speedup", "best of size")
COLUMNS = (Column(least=12), *(Column(">", least, gap=1) for least in (6, 6, 12, 9, 8, 13)))


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
        click.echo(json.dumps(report(labels, compared, best), indent=2))
    else:
        click.echo(f"{heading(best, profile)}\n\n{table(labels, compared, best)}")


def table(labels: list[str], compared: "tuple[ComparedTree, ...]", best: "Plan") -> str:
    """Return one line per tree, plain decoding and the fastest."""
    rows: list[tuple[str, ...]] = [HEADER]
    for label, each in zip(labels, compared, strict=True):
        if each.prediction is None:
            rows.append(
                (label, str(each.tree.nodes), str(each.tree.max_depth), f"not predicted: {each.unknown}"),
            )
        else:
            rows.append(_row(label, each.prediction, each.same_size))
    last = [_row("plain decoding", best.plain), _row(f"fastest: {best.choice.shape}", best.choice)]
    return "\n".join(aligned([*rows, (), *last], COLUMNS))


def report(labels: list[str], compared: "tuple[ComparedTree, ...]", best: "Plan") -> dict[str, Any]:
    """Return everything as one JSON object, seconds and tokens."""
    return {
        "rule": best.rule,
        "temperature": best.temperature,
        "trees": [
            {
                "label": label,
                "nodes": each.tree.nodes,
                "depth": each.tree.max_depth,
                "predicted": _numbers(each.prediction),
                "unknown": each.unknown or None,
                "best_of_size": _numbers(each.same_size),
            }
            for label, each in zip(labels, compared, strict=True)
        ],
        "plain": _numbers(best.plain),
        "fastest": _numbers(best.choice),
    }


def _row(label: str, candidate: "Candidate", same_size: "Candidate | None" = None) -> tuple[str, ...]:
    return (
        label,
        str(candidate.tree.nodes),
        str(candidate.tree.max_depth),
        f"{candidate.tokens_per_step.value:.2f}",
        milliseconds(candidate.step_s.value),
        f"{candidate.speedup.value:.2f}",
        "" if same_size is None else f"{same_size.speedup.value:.2f}",
    )


def _numbers(candidate: "Candidate | None") -> dict[str, Any] | None:
    if candidate is None:
        return None
    return {
        "nodes": candidate.tree.nodes,
        "depth": candidate.tree.max_depth,
        "tokens_per_step": candidate.tokens_per_step.value,
        "step_s": candidate.step_s.value,
        "speedup": candidate.speedup.value,
        "speedup_interval": [candidate.speedup.low, candidate.speedup.high],
    }


def _label(path: Path, name: str | None) -> str:
    return printable(path.name if name is None else f"{path.name}: {name}")
