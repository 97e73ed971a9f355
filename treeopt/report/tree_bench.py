"""One tree, as predicted and as decoded: a few lines, and JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.records.latency import Estimate
from treeopt.records.profile import MeasuredAcceptance
from treeopt.records.results import Divergence, Measured
from treeopt.records.rules import LOSSY_RULES
from treeopt.records.warnings import TextDiffers
from treeopt.report.json_text import json_text
from treeopt.report.text import milliseconds
from treeopt.version import TOOL

if TYPE_CHECKING:
    from treeopt.planner import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBenchReport:
    """Prediction and measurement of one tree, seconds and tokens."""

    tool: str = TOOL
    rule: str
    temperature: float
    lossy: bool
    nodes: int
    depth: int
    predicted_speedup: Estimate
    measured_speedup: Estimate
    predicted_tokens_per_step: float
    measured_tokens_per_step: float
    predicted_step_s: float
    measured_step_s: float
    measured_plain_step_s: float
    identical_to_plain_decoding: bool | None
    divergences: tuple[Divergence, ...] | None
    tokens: int

    @classmethod
    def of(cls, predicted: "Candidate", measured: Measured, asked: MeasuredAcceptance) -> "TreeBenchReport":
        """Return that of a tree, as an acceptance was measured."""
        return cls(
            rule=asked.rule,
            temperature=asked.temperature,
            lossy=asked.rule in LOSSY_RULES,
            nodes=predicted.tree.nodes,
            depth=predicted.tree.max_depth,
            predicted_speedup=predicted.speedup,
            measured_speedup=measured.speedup,
            predicted_tokens_per_step=predicted.tokens_per_step.value,
            measured_tokens_per_step=measured.tokens_per_step,
            predicted_step_s=predicted.step_s.value,
            measured_step_s=measured.step_s,
            measured_plain_step_s=measured.plain_step_s,
            identical_to_plain_decoding=measured.identical,
            divergences=measured.divergences,
            tokens=measured.tokens,
        )


def tree_bench_json(predicted: "Candidate", measured: Measured, asked: MeasuredAcceptance) -> str:
    """Return prediction and measurement as one JSON object."""
    return json_text(TreeBenchReport.of(predicted, measured, asked)) + "\n"


def tree_bench_table(predicted: "Candidate", measured: Measured, asked: MeasuredAcceptance) -> str:
    """Return prediction beside measurement, in a few lines."""
    rows = [
        ("tokens per step", f"{predicted.tokens_per_step.value:.2f}", f"{measured.tokens_per_step:.2f}"),
        ("step, ms", milliseconds(predicted.step_s.value), milliseconds(measured.step_s)),
        ("speedup", f"{predicted.speedup.value:.2f}", f"{measured.speedup.value:.2f}"),
    ]
    lines = [f"{'':<18}{'predicted':>10}{'measured':>10}"]
    lines += [f"{name:<18}{left:>10}{right:>10}" for name, left, right in rows]
    lines.append(f"\n{measured.tokens} tokens decoded in whole steps; {_verdict(measured, asked.rule)}.")
    return "\n".join(lines)


def _verdict(measured: Measured, rule: str) -> str:
    """Return in words whether the text is plain decoding's."""
    if measured.divergences is None:
        lossy = f"; rule {rule} is lossy: they do not follow the target's distribution" if rule in LOSSY_RULES else ""
        return f"above temperature 0 texts are not compared{lossy}"
    if not measured.divergences:
        return "the text is plain decoding's, token by token"
    count = len(measured.divergences)
    if all(each.near_tie for each in measured.divergences):
        return (
            f"{count} of {measured.prompts} texts part from plain decoding's, each at a near-tie of the two top logits"
        )
    return str(TextDiffers())
