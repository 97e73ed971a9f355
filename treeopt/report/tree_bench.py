"""One tree, as predicted and as decoded: a few lines, and JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.errors import Warning
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import Divergence, Measured, Pace, PacedPrediction
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.bench_heading import headed_json, pace_lines, paced_speedup
from treeopt.report.text import milliseconds
from treeopt.trees import Provenance, TreeFile

if TYPE_CHECKING:
    from treeopt.planner import Option

UNKNOWN = "-"
"""Stands for what nobody promised."""


OUTPUT_DIFFERS = Warning("the output DIFFERS from plain decoding's.", "Report it with the --output file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How is decoded, with what, and what was promised of it; None where nothing was."""

    rule: str
    temperature: float
    drafter: str = "model"
    """With its numbers."""
    nodes: int
    depth: int
    tokens_per_step: float | None
    step_s: float | None
    speedup: Estimate | float | None
    """Without an interval where a tree file promises it."""
    at_pace: PacedPrediction | None = None

    @classmethod
    def of_tree(cls, predicted: "Option", asked: MeasuredAcceptance) -> "Promise":
        """Return that of a tree which the draft model fills, as an acceptance was measured."""
        return cls(
            rule=asked.rule,
            temperature=asked.temperature,
            nodes=predicted.tree.nodes,
            depth=predicted.tree.max_depth,
            tokens_per_step=predicted.tokens_per_step.value,
            step_s=predicted.step_s.value,
            speedup=predicted.speedup,
        )

    @classmethod
    def of_file(cls, planned: TreeFile, *, rule: str, temperature: float) -> "Promise":
        """Return that of a tree file's own words, which hold for its rule and temperature only."""
        known = planned.provenance or Provenance()
        holds = known.temperature == temperature and (temperature == 0 or known.rule == rule)
        return cls(
            rule=rule,
            temperature=temperature,
            drafter="model" if planned.drafter is None else planned.drafter.words,
            nodes=planned.tree.nodes,
            depth=planned.tree.max_depth,
            tokens_per_step=known.tokens_per_step if holds else None,
            step_s=known.step_s if holds else None,
            speedup=known.speedup if holds else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBenchReport:
    """Prediction and measurement of one tree, seconds and tokens."""

    drafter: str
    rule: str
    temperature: float
    lossy: bool
    nodes: int
    depth: int
    predicted_speedup: Estimate | float | None
    measured_speedup: Estimate
    predicted_tokens_per_step: float | None
    measured_tokens_per_step: float
    predicted_step_s: float | None
    measured_step_s: float
    measured_plain_step_s: float
    identical_to_plain_decoding: bool | None
    divergences: tuple[Divergence, ...] | None
    tokens: int
    predicted_at_pace: PacedPrediction | None = None
    pace: Pace | None = None

    @classmethod
    def of(cls, promised: Promise, measured: Measured) -> "TreeBenchReport":
        """Return that of a promise and what came true of it."""
        return cls(
            drafter=promised.drafter,
            rule=promised.rule,
            temperature=promised.temperature,
            lossy=promised.rule in LOSSY_RULES,
            nodes=promised.nodes,
            depth=promised.depth,
            predicted_speedup=promised.speedup,
            measured_speedup=measured.speedup,
            predicted_tokens_per_step=promised.tokens_per_step,
            measured_tokens_per_step=measured.tokens_per_step,
            predicted_step_s=promised.step_s,
            measured_step_s=measured.step_s,
            measured_plain_step_s=measured.plain_step_s,
            identical_to_plain_decoding=measured.identical,
            divergences=measured.divergences,
            tokens=measured.tokens,
            predicted_at_pace=promised.at_pace,
            pace=measured.pace,
        )


def tree_bench_json(heading: BenchHeading, promised: Promise, measured: Measured) -> str:
    """Return prediction and measurement as one JSON object that begins with what it is of."""
    return headed_json(heading, TreeBenchReport.of(promised, measured))


def tree_bench_table(promised: Promise, measured: Measured) -> str:
    """Return prediction beside measurement, in a few lines."""
    speedup = promised.speedup.value if isinstance(promised.speedup, Estimate) else promised.speedup
    at_pace, tokens = promised.at_pace, _two_digits(promised.tokens_per_step)
    rows = [
        ("", "predicted", "at this pace", "measured"),
        ("tokens per step", tokens, UNKNOWN if at_pace is None else tokens, f"{measured.tokens_per_step:.2f}"),
        (
            "step, ms",
            *(
                UNKNOWN if each is None else milliseconds(each)
                for each in (promised.step_s, None if at_pace is None else at_pace.step_s)
            ),
            milliseconds(measured.step_s),
        ),
        ("speedup", _two_digits(speedup), _two_digits(paced_speedup(at_pace)), f"{measured.speedup.value:.2f}"),
    ]
    lines = [f"{name:<18}{left:>10}{middle:>14}{right:>10}" for name, left, middle, right in rows]
    lines += ["", *pace_lines(measured.pace)] if measured.pace else []
    lines.append(f"\n{measured.tokens} tokens decoded in whole steps; {_verdict(measured, promised.rule)}.")
    if promised.drafter != "model":
        lines.append(f"Drafted by {promised.drafter}.")
    return "\n".join(lines)


def _two_digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _verdict(measured: Measured, rule: str) -> str:
    """Return in words whether the text is plain decoding's."""
    if measured.divergences is None:
        lossy = f"; rule {rule} is lossy: they do not follow the target's distribution" if rule in LOSSY_RULES else ""
        return f"above temperature 0 texts are not compared{lossy}"
    if not measured.divergences:
        return "the text is plain decoding's, token by token"
    count = len(measured.divergences)
    if all(each.near_tie for each in measured.divergences):
        return f"{count} of {measured.prompts} texts part from plain decoding's, each at a near-tie of the top logits"
    return str(OUTPUT_DIFFERS)
