"""`treeopt compare`: trees of any origin side by side under one profile."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import checked_rule, file, load_profile, lossy_option, profile_options
from treeopt.cli.plan_text import heading
from treeopt.cli.text import milliseconds
from treeopt.cli.waiting import patience

if TYPE_CHECKING:
    from treeopt.planner import Candidate, Plan
    from treeopt.planner.comparison import ComparedTree

MIN_LABEL = 12


@click.command()
@click.argument("paths", type=file, metavar="FILE…", nargs=-1, required=True)
@profile_options
@click.option(
    "--context-tokens", type=click.IntRange(min=1), help="Tokens in the cache; by default the first measured."
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Sequences decoded together; by default the first measured."
)
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
    """Predict what the trees of each FILE come to on this machine, and what the best ones would.

    Trees may be in any known format (treeopt import --list); of a file that holds several, all are compared.
    """
    if rule is not None:
        checked_rule(rule, lossy=lossy)
    from treeopt.planner import plan, step_model
    from treeopt.planner.comparison import compare as compare_trees
    from treeopt.trees.formats import read_trees

    profile = load_profile(profile_path)
    named = [(_label(path, each.name), each.tree) for path in paths for each in read_trees(path)]
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
    last = [("plain decoding", best.plain), (f"fastest: {best.choice.shape}", best.choice)]
    width = max(MIN_LABEL, *(len(label) for label in labels), *(len(label) for label, _ in last))
    lines = [
        f"{'':<{width}} {'nodes':>6} {'depth':>6} {'tokens/step':>12} {'step, ms':>9} {'speedup':>8} {'best of size':>13}"
    ]
    for label, each in zip(labels, compared, strict=True):
        if each.prediction is None:
            lines.append(
                f"{label:<{width}} {each.tree.nodes:>6} {each.tree.max_depth:>6} not predicted: {each.unknown}"
            )
        else:
            lines.append(_line(label, width, each.prediction, each.same_size))
    return "\n".join([*lines, "", *(_line(label, width, candidate, None) for label, candidate in last)])


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


def _line(label: str, width: int, candidate: "Candidate", same_size: "Candidate | None") -> str:
    of_size = "" if same_size is None else f"{same_size.speedup.value:.2f}"
    return (
        f"{label:<{width}} {candidate.tree.nodes:>6} {candidate.tree.max_depth:>6} "
        f"{candidate.tokens_per_step.value:>12.2f} {milliseconds(candidate.step_s.value):>9} "
        f"{candidate.speedup.value:>8.2f} {of_size:>13}"
    ).rstrip()


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
    return path.name if name is None else f"{path.name}: {name}"
