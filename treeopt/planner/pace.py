"""Predictions at the pace that a machine had during a benchmark."""

from dataclasses import replace

import numpy as np

from treeopt.errors import InfeasibleError
from treeopt.planner.curves import Curve
from treeopt.planner.model import StepModel
from treeopt.records.results import Pace, PacedPrediction
from treeopt.trees import TokenTree


def at_pace(model: StepModel, pace: Pace) -> StepModel:
    """Return a model with both curves scaled; its values hold, its intervals stay those of the profile.

    Verification is scaled by both ratios, linearly interpolated between their counts.  Host overhead is scaled as the
    target's pass over one token, which is the nearest to it: a machine that is slower in all parts has the same speedups.
    """
    costs = model.costs
    draft = pace.plain if pace.draft is None else pace.draft
    return replace(
        model,
        costs=replace(
            costs,
            verify=_scaled(costs.verify, (pace.plain, pace.verify), pace),
            draft=_scaled(costs.draft, (draft, draft), pace),
            overhead_s=costs.overhead_s * pace.plain,
            branching_s=costs.branching_s * pace.plain,
        ),
    )


def predict_at_pace(model: StepModel | None, tree: TokenTree, pace: Pace | None) -> PacedPrediction | None:
    """Return the prediction for a tree; None without a model or a pace, or beyond what was measured."""
    if model is None or pace is None:
        return None
    scaled = at_pace(model, pace)
    try:
        return PacedPrediction(step_s=scaled.step_s(tree), speedup=scaled.speedup(tree))
    except InfeasibleError:
        return None


def _scaled(curve: Curve, ratios: tuple[float, float], pace: Pace) -> Curve:
    scale = np.interp(curve.tokens, (1, pace.verify_tokens), ratios)
    return replace(curve, seconds=curve.seconds * scale, more_s=curve.more_s * pace.plain)
