"""From trials to the fastest way of drafting: counts of the trial, seconds of the profile.

    step_s = draft_s + sum over sizes of share[size] verify_s[size] + overhead_s
    speedup = tokens_per_step / step_s * verify_s[1]

For drafters whose trees hang on the text, and which therefore have no table of acceptance by depth and rank.
"""

from collections.abc import Sequence

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import StepCosts
from treeopt.planner.draws import SEED, draw_medians, draw_ratios, estimate
from treeopt.planner.model import StepModel
from treeopt.records.decode_stats import Trial
from treeopt.records.latency import Estimate


def predicted_speedup(trial: Trial, model: StepModel) -> Estimate:
    """Return tokens per second over those of plain decoding, with its 95 % interval.

    Raises InfeasibleError for passes larger than were timed.
    """
    drawn_s = _step_s(trial, model.worlds.costs, draw_medians((trial.draft,), np.random.default_rng(SEED))[:, 0])
    drawn = draw_ratios(trial.tokens, trial.steps) / drawn_s * model.worlds.costs.plain_s[..., 0]
    return estimate(_speedup(trial, model), drawn)


def predicted_step_s(trial: Trial, model: StepModel) -> float:
    """Return the seconds of a step; raises as `predicted_speedup` does."""
    return float(_step_s(trial, model.costs, np.array(trial.draft.median_s)))


def fastest_trial(trials: Sequence[Trial], model: StepModel) -> int:
    """Return which trial has the largest predicted speedup, in a tie the first.

    Raises InfeasibleError without trials.
    """
    if not trials:
        raise InfeasibleError("trials: expected at least one setting to have been tried. Got none.")
    return int(np.argmax([_speedup(trial, model) for trial in trials]))


def _speedup(trial: Trial, model: StepModel) -> float:
    return float(trial.tokens_per_step / predicted_step_s(trial, model) * model.costs.plain_s[0])


def _step_s(trial: Trial, costs: StepCosts, draft_s: Float64) -> Float64:
    """Return (…,): seconds of a step, for the curves or for draws of them."""
    if trial.pass_tokens[-1] > costs.max_nodes:
        raise InfeasibleError(
            f"nodes: times were measured for 1 to {costs.max_nodes} tokens. Got {trial.pass_tokens[-1]}: ask for fewer, "
            "or profile with a larger --max-tokens."
        )
    share = trial.passes / trial.passes.sum()
    overhead_s = costs.overhead_s * float(share[trial.pass_tokens > 1].sum())
    return np.asarray(draft_s + costs.verify.at(trial.pass_tokens) @ share + overhead_s)
