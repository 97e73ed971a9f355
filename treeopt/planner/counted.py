"""What a drafter with trees of its own comes to at each setting that was decoded with, under any condition.

    step_s = plain_s * (seconds a step / seconds a plain step)
             + sum over sizes of share[size] verify_s[size]
             - sum over sizes of (share[size] verify_s[size] where the texts were decoded)
    speedup = tokens_per_step / step_s * plain_s

The first shares are those of the replayed texts where there are any.  Tokens, steps and seconds are drawn text by text together, because a text of many tokens a step has other passes too.
Between context lengths at which settings were decoded with, tokens and seconds of a step lie on straight lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.condition import Condition
from treeopt.planner.costs import EXTRAPOLATED, Reading, StepCosts
from treeopt.planner.curves import LEAST_S
from treeopt.planner.drafted import Weights, pass_costs, relative_steps
from treeopt.planner.draws import SEED, draw_medians, estimate, same_texts
from treeopt.records.latency import Estimate
from treeopt.records.measured_drafter import CountedDecodes, CountedSetting, ReplayedTexts
from treeopt.trees.drafter_setting import SettingValue


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DecodedSettings(ShortRepr):
    """Settings of a drafter, and the condition under which they were decoded with."""

    measured: CountedDecodes
    at: Condition

    @property
    def texts(self) -> int:
        """How many were decoded."""
        return self.measured.plain.texts

    def setting(self, values: tuple[SettingValue, ...]) -> CountedSetting:
        """Return what decoding with some numbers came to."""
        return next(each for each in self.measured.settings if each.values == values)


Part = tuple[float, DecodedSettings]
"""A share of what is mixed."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class CountedPrediction(ArrayRecord):
    """One setting, and what decoding with it says of a condition."""

    setting: CountedSetting
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    draws: Float64
    """(draws,): what the speedup may be."""


def counted_predictions(parts: Sequence[Part], where: Condition, *, max_nodes: int) -> tuple[CountedPrediction, ...]:
    """Return the predictions for all settings whose passes are no larger than `max_nodes` and what was timed.

    Args:
        parts: shares, which add up to 1, of what was decoded around one or two context lengths with the same settings.
        where: the condition.
        max_nodes: most tokens of a pass.

    Raises InfeasibleError where a step's time is extrapolated to 0.
    """
    generator = np.random.default_rng(SEED)
    weights_of = same_texts(generator)
    known = _Settings(parts, where, None, lambda texts: np.ones((1, texts), np.int64))
    drawn = _Settings(parts, where, partial(draw_medians, generator=generator), weights_of)
    found = []
    for each in parts[0][1].measured.settings:
        if each.max_tokens > min(max_nodes, known.max_nodes):
            continue
        tokens, step_s = known.tokens(each.values), known.step_s(each.values)
        if step_s[0] <= 0:
            raise InfeasibleError(EXTRAPOLATED)
        tokens_drawn, drawn_s = drawn.tokens(each.values), np.maximum(drawn.step_s(each.values), LEAST_S)
        speedups = tokens_drawn / drawn_s * drawn.plain_s
        found.append(
            CountedPrediction(
                setting=each,
                draws=speedups,
                tokens_per_step=estimate(float(tokens[0]), tokens_drawn),
                step_s=estimate(float(step_s[0]), drawn_s),
                speedup=estimate(float(tokens[0] / step_s[0] * known.plain_s), speedups),
            )
        )
    return tuple(found)


class _Settings:
    """Tokens and seconds of steps under a condition, (draws,): of everything measured once, or of many draws."""

    def __init__(self, parts: Sequence[Part], where: Condition, reading: Reading | None, weights: Weights) -> None:
        for _, part in parts:
            weights(part.texts)  # those of the timed texts are drawn first, whatever is replayed
        self._costs = pass_costs(where, reading)
        self._weights = weights
        self._parts = [
            (share, part, self._costs if part.at == where else pass_costs(part.at, reading)) for share, part in parts
        ]

    @property
    def max_nodes(self) -> int:
        """Of the largest pass that was timed, here and where texts were decoded."""
        return min(self._costs.max_nodes, *(there.max_nodes for _, _, there in self._parts))

    @property
    def plain_s(self) -> Float64:
        """Seconds of a plain step."""
        return np.asarray(self._costs.plain_s[..., 0])

    def tokens(self, values: tuple[SettingValue, ...]) -> Float64:
        """Return the tokens of a step with a setting."""
        return np.asarray(sum(share * _tokens(part.setting(values), self._weights) for share, part, _ in self._parts))

    def step_s(self, values: tuple[SettingValue, ...]) -> Float64:
        """Return the seconds of a step with a setting."""
        return np.asarray(
            sum(
                share * _step_s(part.measured, part.setting(values), self._costs, there, self._weights(part.texts))
                for share, part, there in self._parts
            )
        )


def _tokens(setting: CountedSetting, weights: Weights) -> Float64:
    """Return (draws,): tokens of a step."""
    tokens, steps = np.array(setting.steps.tokens), np.array(setting.steps.steps)
    weight = weights(len(steps))
    return np.asarray((weight @ tokens) / (weight @ steps))


def _step_s(
    decodes: CountedDecodes, setting: CountedSetting, costs: StepCosts, there: StepCosts, weights: Int64
) -> Float64:
    """Return (draws,): seconds of a step under a condition, given its curves and those where the texts were decoded."""
    moved_s = mean_pass_s(setting.replayed or setting, costs) - mean_pass_s(setting, there)
    relative = relative_steps(decodes.plain, [setting.decoded], weights)[:, 0]
    return np.asarray(there.plain_s[..., 0] * relative + moved_s)


def mean_pass_s(counted: CountedSetting | ReplayedTexts, costs: StepCosts) -> Float64:
    """Return (draws,): seconds of the target's pass in a step."""
    return np.asarray(costs.verify.at(np.array(counted.pass_tokens)) @ (np.array(counted.passes) / sum(counted.passes)))
