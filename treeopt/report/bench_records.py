"""Records of benches from what was planned and measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.records.bench_file import GridBench, GridTree
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import PacedPrediction, TreePrediction
from treeopt.trees import Provenance, TreeFile

if TYPE_CHECKING:
    from treeopt.planner import Option
    from treeopt.planner.grid import GridRow


def prediction(option: "Option", at_pace: PacedPrediction | None = None) -> TreePrediction:
    """Return what a profile predicts of an option."""
    speedup = option.speedup
    return TreePrediction(
        tokens_per_step=option.tokens_per_step.value,
        step_s=option.step_s.value,
        speedup=speedup.value,
        interval=(speedup.low, speedup.high),
        at_pace=at_pace,
    )


def file_prediction(planned: TreeFile, *, rule: str, temperature: float) -> TreePrediction:
    """Return what a tree file predicts, which holds for its rule and temperature only."""
    known = planned.provenance or Provenance()
    if known.temperature != temperature or (temperature != 0 and known.rule != rule):
        known = Provenance()
    return TreePrediction(tokens_per_step=known.tokens_per_step, step_s=known.step_s, speedup=known.speedup)


def grid_bench(
    rows: "Sequence[GridRow]", plain_s: float, acceptance: MeasuredAcceptance, *, plain_is_fastest: bool = False
) -> GridBench:
    """Return the record of a grid, the choice first.

    Args:
        rows: predicted and measured.
        plain_s: predicted seconds of a plain step.
        acceptance: its rule and temperature were decoded with.
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
