"""Records of benches, built from predictions and measurements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.records.bench_file import GridBench, GridTree
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import PacedPrediction, TreePrediction
from treeopt.trees import Provenance, TreeFile

if TYPE_CHECKING:
    from treeopt.planner import Option
    from treeopt.planner.benchmarks import GridRow


def prediction(option: "Option", at_pace: PacedPrediction | None = None) -> TreePrediction:
    """Return the record of an option's prediction."""
    speedup = option.speedup
    return TreePrediction(
        tokens_per_step=option.tokens_per_step.value,
        step_s=option.step_s.value,
        speedup=speedup.value,
        interval=(speedup.low, speedup.high),
        at_pace=at_pace,
    )


def file_prediction(planned: TreeFile, *, rule: str, temperature: float) -> TreePrediction:
    """Return the prediction of a tree file; empty at another rule or temperature than its own."""
    provenance = planned.provenance or Provenance()
    if provenance.temperature != temperature or (temperature != 0 and provenance.rule != rule):
        provenance = Provenance()
    return TreePrediction(
        tokens_per_step=provenance.tokens_per_step, step_s=provenance.step_s, speedup=provenance.speedup
    )


def grid_bench(
    rows: "Sequence[GridRow]", plain_s: float, acceptance: MeasuredAcceptance, *, plain_is_fastest: bool = False
) -> GridBench:
    """Return the record of a grid.

    Args:
        rows: the choice first.
        plain_s: predicted seconds of a plain step.
        acceptance: provides the rule and temperature.
        plain_is_fastest: whether plain decoding is the choice; then the first row is the fastest tree.
    """
    return GridBench(
        rule=acceptance.rule,
        temperature=acceptance.temperature,
        predicted_plain_step_s=plain_s,
        plain_is_fastest=plain_is_fastest,
        trees=tuple(
            GridTree(tree=row.predicted.tree, predicted=prediction(row.predicted, row.at_pace), measured=row.measured)
            for row in rows
        ),
    )
