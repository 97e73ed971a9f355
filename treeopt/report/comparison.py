"""Trees compared under one profile, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.records.latency import Estimate
from treeopt.report.json_text import json_text
from treeopt.report.plan_text import heading
from treeopt.report.table import Column, aligned
from treeopt.report.text import milliseconds

if TYPE_CHECKING:
    from treeopt.planner import Option, Plan
    from treeopt.planner.comparison import ComparedTree
    from treeopt.records.profile import Profile

HEADER = ("", "nodes", "depth", "tokens/step", "step, ms", "speedup", "best of size")
COLUMNS = (Column(least=12), *(Column(">", least, gap=1) for least in (6, 6, 12, 9, 8, 13)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The size of a tree and its predicted speed."""

    nodes: int
    depth: int
    tokens_per_step: float
    step_s: float
    speedup: Estimate

    @classmethod
    def of(cls, option: "Option") -> "Prediction":
        return cls(
            nodes=option.tree.nodes,
            depth=option.tree.max_depth,
            tokens_per_step=option.tokens_per_step.value,
            step_s=option.step_s.value,
            speedup=option.speedup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """One tree next to the best of its size."""

    label: str
    nodes: int
    depth: int
    predicted: Prediction | None
    unknown: str | None
    """Why there is no prediction; None if there is one."""
    best_of_size: Prediction | None

    @classmethod
    def of(cls, label: str, row: "ComparedTree") -> "TreeReport":
        return cls(
            label=label,
            nodes=row.tree.nodes,
            depth=row.tree.max_depth,
            predicted=None if row.prediction is None else Prediction.of(row.prediction),
            unknown=row.unknown or None,
            best_of_size=None if row.same_size is None else Prediction.of(row.same_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Trees next to plain decoding and the fastest option, in seconds and tokens."""

    rule: str
    temperature: float
    trees: tuple[TreeReport, ...]
    plain: Prediction
    fastest: Prediction

    @classmethod
    def of(cls, labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> "ComparisonReport":
        """Return the report on labelled trees; `best` is the plan at the same operating point."""
        return cls(
            rule=best.rule,
            temperature=best.temperature,
            trees=tuple(TreeReport.of(label, row) for label, row in zip(labels, compared, strict=True)),
            plain=Prediction.of(best.plain),
            fastest=Prediction.of(best.choice),
        )


def comparison_json(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> str:
    """Return the report as one JSON object."""
    return json_text(ComparisonReport.of(labels, compared, best))


def comparison_text(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan", profile: "Profile") -> str:
    """Return the heading of the plan and the table."""
    return f"{heading(best, profile)}\n\n{comparison_table(labels, compared, best)}"


def comparison_table(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> str:
    """Return a line for each tree, for plain decoding and for the fastest option."""
    rows: list[tuple[str, ...]] = [HEADER]
    for label, row in zip(labels, compared, strict=True):
        if row.prediction is None:
            rows.append((label, str(row.tree.nodes), str(row.tree.max_depth), f"not predicted: {row.unknown}"))
        else:
            rows.append(_row(label, row.prediction, row.same_size))
    last = [_row("plain decoding", best.plain), _row(f"fastest: {best.choice.shape}", best.choice)]
    return "\n".join(aligned([*rows, (), *last], COLUMNS))


def _row(label: str, option: "Option", same_size: "Option | None" = None) -> tuple[str, ...]:
    return (
        label,
        str(option.tree.nodes),
        str(option.tree.max_depth),
        f"{option.tokens_per_step.value:.2f}",
        milliseconds(option.step_s.value),
        f"{option.speedup.value:.2f}",
        "" if same_size is None else f"{same_size.speedup.value:.2f}",
    )
