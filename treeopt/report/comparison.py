"""Trees compared under one profile, as a table and as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from treeopt.errors import Warning
from treeopt.files.serialization import serialize_record
from treeopt.planner import Option, Plan
from treeopt.planner.comparison import ComparedTree
from treeopt.records.profile import Profile
from treeopt.report.plan_text import heading
from treeopt.report.table import Column, aligned
from treeopt.report.text import milliseconds

HEADER = ("", "nodes", "depth", "tokens/step", "step, ms", "speedup", "best of size")
COLUMNS = (Column(least=12), *(Column(">", least, gap=1) for least in (6, 6, 12, 9, 8, 13)))


def comparison_json(
    labels: Sequence[str], compared: Sequence[ComparedTree], best: Plan, profile: Profile, warnings: Sequence[Warning]
) -> str:
    """Return labelled trees, plain decoding and the fastest option as one JSON object, in seconds and tokens.

    Args:
        labels: of the trees.
        compared: the trees with their predictions.
        best: the plan at the same operating point.
        profile: what it was planned from.
        warnings: about the plan.
    """
    report = {
        "pair": serialize_record(profile.pair, nulls=True),
        "machine": serialize_record(profile.machine, nulls=True),
        "rule": best.rule,
        "temperature": best.temperature,
        "context_tokens": best.context_tokens,
        "batch_size": best.model.point.batch_size,
        "trees": [
            {
                "label": label,
                "nodes": row.tree.nodes,
                "depth": row.tree.max_depth,
                "predicted": _predicted(row.prediction),
                "unknown": row.unknown or None,
                "best_of_size": _predicted(row.same_size),
            }
            for label, row in zip(labels, compared, strict=True)
        ],
        "plain": _predicted(best.plain),
        "fastest": _predicted(best.choice),
        "warnings": list(map(str, warnings)),
    }
    return json.dumps(report, indent=2)


def _predicted(option: Option | None) -> dict[str, Any] | None:
    if option is None:
        return None
    return {
        "nodes": option.tree.nodes,
        "depth": option.tree.max_depth,
        "tokens_per_step": option.tokens_per_step.value,
        "step_s": option.step_s.value,
        **option.speedup.named_fields("speedup"),
    }


def comparison_text(labels: Sequence[str], compared: Sequence[ComparedTree], best: Plan, profile: Profile) -> str:
    """Return the heading of the plan, and a line for each tree, for plain decoding and for the fastest option."""
    rows: list[tuple[str, ...]] = [HEADER]
    for label, row in zip(labels, compared, strict=True):
        if row.prediction is None:
            rows.append((label, str(row.tree.nodes), str(row.tree.max_depth), f"not predicted: {row.unknown}"))
        else:
            rows.append(_row(label, row.prediction, row.same_size))
    last = [_row("plain decoding", best.plain), _row(f"fastest: {best.choice.shape}", best.choice)]
    return "\n".join([heading(best, profile), "", *aligned([*rows, (), *last], COLUMNS)])


def _row(label: str, option: Option, same_size: Option | None = None) -> tuple[str, ...]:
    return (
        label,
        str(option.tree.nodes),
        str(option.tree.max_depth),
        f"{option.tokens_per_step.value:.2f}",
        milliseconds(option.step_s.value),
        f"{option.speedup.value:.2f}",
        "" if same_size is None else f"{same_size.speedup.value:.2f}",
    )
