"""Trees side by side under one profile, as a table and as JSON."""

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
    """What is predicted of one way to decode."""

    nodes: int
    depth: int
    tokens_per_step: float
    step_s: float
    speedup: Estimate

    @classmethod
    def of(cls, candidate: "Option") -> "Prediction":
        """Return that of a candidate."""
        return cls(
            nodes=candidate.tree.nodes,
            depth=candidate.tree.max_depth,
            tokens_per_step=candidate.tokens_per_step.value,
            step_s=candidate.step_s.value,
            speedup=candidate.speedup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """One tree, beside the best of its size."""

    label: str
    nodes: int
    depth: int
    predicted: Prediction | None
    unknown: str | None
    """Why it is not predicted."""
    best_of_size: Prediction | None

    @classmethod
    def of(cls, label: str, each: "ComparedTree") -> "TreeReport":
        """Return that of a tree under a label."""
        return cls(
            label=label,
            nodes=each.tree.nodes,
            depth=each.tree.max_depth,
            predicted=None if each.prediction is None else Prediction.of(each.prediction),
            unknown=each.unknown or None,
            best_of_size=None if each.same_size is None else Prediction.of(each.same_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Trees beside plain decoding and the fastest of all, seconds and tokens."""

    rule: str
    temperature: float
    trees: tuple[TreeReport, ...]
    plain: Prediction
    fastest: Prediction

    @classmethod
    def of(cls, labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> "ComparisonReport":
        """Return that of trees under their labels, beside the plan of the same condition."""
        return cls(
            rule=best.rule,
            temperature=best.temperature,
            trees=tuple(TreeReport.of(label, each) for label, each in zip(labels, compared, strict=True)),
            plain=Prediction.of(best.plain),
            fastest=Prediction.of(best.choice),
        )


def comparison_json(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> str:
    """Return the report as one JSON object."""
    return json_text(ComparisonReport.of(labels, compared, best))


def comparison_text(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan", profile: "Profile") -> str:
    """Return what was planned for, and the table."""
    return f"{heading(best, profile)}\n\n{comparison_table(labels, compared, best)}"


def comparison_table(labels: Sequence[str], compared: "Sequence[ComparedTree]", best: "Plan") -> str:
    """Return one line per tree, plain decoding and the fastest."""
    rows: list[tuple[str, ...]] = [HEADER]
    for label, each in zip(labels, compared, strict=True):
        if each.prediction is None:
            rows.append((label, str(each.tree.nodes), str(each.tree.max_depth), f"not predicted: {each.unknown}"))
        else:
            rows.append(_row(label, each.prediction, each.same_size))
    last = [_row("plain decoding", best.plain), _row(f"fastest: {best.choice.shape}", best.choice)]
    return "\n".join(aligned([*rows, (), *last], COLUMNS))


def _row(label: str, candidate: "Option", same_size: "Option | None" = None) -> tuple[str, ...]:
    return (
        label,
        str(candidate.tree.nodes),
        str(candidate.tree.max_depth),
        f"{candidate.tokens_per_step.value:.2f}",
        milliseconds(candidate.step_s.value),
        f"{candidate.speedup.value:.2f}",
        "" if same_size is None else f"{same_size.speedup.value:.2f}",
    )
