"""What a drafter with trees of its own comes to at each setting that was decoded with, under any condition.

    step_s = plain_s * (seconds a step / seconds a plain step)
             + sum over sizes of share[size] (verify_s[size] - verify_s[size] where the texts were decoded)
    speedup = tokens_per_step / step_s * plain_s

Tokens, steps and seconds are drawn text by text together, because a text of many tokens a step has other passes too.
"""

from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.condition import Condition
from treeopt.planner.costs import Reading, StepCosts
from treeopt.planner.curves import LEAST_S
from treeopt.planner.drafted import pass_costs, relative_steps
from treeopt.planner.draws import SEED, draw_medians, estimate, text_weights
from treeopt.records.latency import Estimate
from treeopt.records.measured_drafter import CountedDecodes, CountedSetting


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CountedPrediction(ShortRepr):
    """One setting, and what decoding with it says of a condition."""

    setting: CountedSetting
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate


def counted_predictions(
    decodes: CountedDecodes, where: Condition, at: Condition, *, max_nodes: int
) -> tuple[CountedPrediction, ...]:
    """Return the predictions for all settings whose passes are no larger than `max_nodes` and what was timed.

    Args:
        decodes: the settings.
        where: the condition.
        at: the condition under which the texts were decoded.
        max_nodes: most tokens of a pass.

    Raises InfeasibleError where a step's time is extrapolated to 0.
    """
    costs, there = _both(where, at)
    generator = np.random.default_rng(SEED)
    weights = text_weights(decodes.plain.texts, generator)
    drawn, drawn_there = _both(where, at, lambda timings: draw_medians(timings, generator))
    every_text = np.ones((1, decodes.plain.texts), np.int64)
    found = []
    for each in decodes.settings:
        if each.max_tokens > min(max_nodes, costs.max_nodes, there.max_nodes):
            continue
        tokens, tokens_drawn = _tokens(each, every_text), _tokens(each, weights)
        step_s, drawn_s = (
            _step_s(decodes, each, costs, there, every_text),
            _step_s(decodes, each, drawn, drawn_there, weights),
        )
        if step_s[0] <= 0:
            raise InfeasibleError(
                "times: extrapolated to 0 seconds or fewer. Ask for something nearer to what was measured."
            )
        drawn_s = np.maximum(drawn_s, LEAST_S)
        found.append(
            CountedPrediction(
                setting=each,
                tokens_per_step=estimate(float(tokens[0]), tokens_drawn),
                step_s=estimate(float(step_s[0]), drawn_s),
                speedup=estimate(
                    float(tokens[0] / step_s[0] * costs.plain_s[0]), tokens_drawn / drawn_s * drawn.plain_s[:, 0]
                ),
            )
        )
    return tuple(found)


def _both(where: Condition, at: Condition, reading: Reading | None = None) -> tuple[StepCosts, StepCosts]:
    """Return the curves of both conditions, the same where they are one."""
    costs = pass_costs(where, reading)
    return costs, costs if at == where else pass_costs(at, reading)


def _tokens(setting: CountedSetting, weights: Int64) -> Float64:
    """Return (draws,): tokens of a step."""
    decoded = setting.decoded
    return np.asarray((weights @ np.array(decoded.tokens)) / (weights @ np.array(decoded.steps)))


def _step_s(
    decodes: CountedDecodes, setting: CountedSetting, costs: StepCosts, there: StepCosts, weights: Int64
) -> Float64:
    """Return (draws,): seconds of a step under a condition, given its curves and those where the texts were decoded."""
    sizes, share = np.array(setting.pass_tokens), np.array(setting.passes) / sum(setting.passes)
    moved_s = (costs.verify.at(sizes) - there.verify.at(sizes)) @ share
    relative = relative_steps(decodes.plain, [setting.decoded], weights)[:, 0]
    return np.asarray(there.plain_s[..., 0] * relative + moved_s)
