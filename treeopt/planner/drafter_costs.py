"""What steps of other drafters than the draft model cost.

Static trees are the ordinary model of steps with the drafter's own times in place of the draft model's.  Settings with
trees of their own were decoded with and plainly, interleaved:

    step_s = plain_s * (seconds of a step / seconds of a plain step)
             + sum over sizes of share[size] verify_s[size], here less where the sequences were decoded

with plain_s of the profile's curves.  Tokens, steps and seconds are drawn sequence by sequence, together.  Between context
lengths that were decoded at, all of this is interpolated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import EXTRAPOLATED, StepCosts, step_costs
from treeopt.planner.curves import LEAST_S
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option, Prediction
from treeopt.planner.resampling import OBSERVED, SEED, Estimator, Resampled, estimate
from treeopt.planner.tokens import TokenModels, token_model
from treeopt.records.measured_drafter import (
    CountedDecodes,
    CountedSetting,
    DecodedTexts,
    MeasuredDrafter,
    MeasuredTrees,
    ReplayedTexts,
)
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.trees import chain


def pass_costs(point: OperatingPoint, estimator: Estimator = OBSERVED) -> StepCosts:
    """Return the curves of an operating point with the target's passes alone, without overhead of a draft model's steps."""
    return step_costs(point, rule=GIVEN_TOKENS, estimator=estimator, passes_only=True)


def decoded_at(profile: Profile, sampling: Sampling, context_tokens: int) -> OperatingPoint:
    """Return the measured operating point of single sequences that is nearest to where some were decoded.

    Raises InfeasibleError if single sequences were not measured.
    """
    latencies = profile.latencies_at(sampling.temperature)
    contexts = [latency.context_tokens for latency in latencies if latency.batch_size == 1]
    inside = int(np.clip(context_tokens, min(contexts), max(contexts))) if contexts else None
    return profile.at(inside, 1, sampling)


def tree_models(
    drafter: MeasuredDrafter, measured: Sequence[MeasuredTrees], *, raw: bool = False
) -> Callable[[OperatingPoint], StepModel]:
    """Return what gives the model of a drafter's steps with static trees at an operating point.

    Args:
        drafter: which.
        measured: its acceptance at one temperature, by rising context length.
        raw: take acceptance as measured, not smoothed.

    The models raise InfeasibleError where drafting was not timed.
    """
    by_context = [
        replace(
            token_model(replace(each.acceptance, context_tokens=each.context_tokens), raw=raw), root_ranks=each.ranks
        )
        for each in measured
    ]
    tokens = TokenModels(tuple(by_context))

    def model(point: OperatingPoint) -> StepModel:
        drafting = drafter.in_place_of_draft(point)
        return model_at(drafting, tokens.at(point.context_tokens), drafter=drafter.setting())

    return model


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SettingOption(ArrayRecord):
    """A setting of a drafter with trees of its own, as an option."""

    option: Option
    draws: Float64
    """(draws,): what the speedup may be."""


def setting_options(
    profile: Profile,
    drafter: MeasuredDrafter,
    measured: Sequence[CountedDecodes],
    point: OperatingPoint,
    *,
    max_nodes: int,
) -> tuple[SettingOption, ...]:
    """Return all settings whose passes are no larger than `max_nodes` and than what was timed.

    Args:
        profile: whose times count.
        drafter: which.
        measured: what was decoded at one temperature, by rising context length, with the same settings.
        point: the operating point.
        max_nodes: most tokens of a pass.

    Raises InfeasibleError if a step's time is extrapolated to 0.
    """
    around = point.around({each.context_tokens: each for each in measured})
    observed = _Settings(profile, point, around, OBSERVED)
    drawn = _Settings(profile, point, around, Resampled(np.random.default_rng(SEED)))
    options = []
    for place, setting in enumerate(measured[0].settings):
        if setting.max_tokens > min(max_nodes, observed.max_nodes):
            continue
        tokens, step_s = observed.tokens(place), observed.step_s(place)
        if step_s <= 0:
            raise InfeasibleError(EXTRAPOLATED)
        drawn_tokens, drawn_s = drawn.tokens(place), np.maximum(drawn.step_s(place), LEAST_S)
        speedups = drawn_tokens / drawn_s * drawn.plain_s
        named = drafter.setting(setting.values)
        option = Option(
            drafter=named,
            tree=chain(named.longest_draft),
            rule=GIVEN_TOKENS,
            verify_tokens=setting.max_tokens,
            prediction=Prediction(
                tokens_per_step=estimate(float(tokens), drawn_tokens),
                step_s=estimate(float(step_s), drawn_s),
                speedup=estimate(float(tokens / step_s * observed.plain_s), speedups),
            ),
        )
        options.append(SettingOption(option=option, draws=speedups))
    return tuple(options)


class _Settings:
    """Tokens and seconds of steps with each setting at an operating point, (…): as observed, or in many draws."""

    def __init__(
        self,
        profile: Profile,
        point: OperatingPoint,
        around: Sequence[tuple[float, CountedDecodes]],
        estimator: Estimator,
    ) -> None:
        for _, decodes in around:
            estimator.text_weights(decodes.plain.texts)  # of the timed sequences before those that are replayed
        self._costs, self._estimator = pass_costs(point, estimator), estimator
        self._around = []
        for weight, decodes in around:
            there = decoded_at(profile, decodes.sampling, decodes.context_tokens)
            costs = self._costs if there == point else pass_costs(there, estimator)
            self._around.append((weight, decodes, costs))
        self._values = [setting.values for setting in around[0][1].settings]

    @property
    def max_nodes(self) -> int:
        """Of the largest pass that was timed, here and where the sequences were decoded."""
        return min(self._costs.max_nodes, *(costs.max_nodes for _, _, costs in self._around))

    @property
    def plain_s(self) -> Float64:
        return np.asarray(self._costs.plain_s[..., 0])

    def tokens(self, place: int) -> Float64:
        return np.asarray(sum(weight * self._tokens(decodes, place) for weight, decodes, _ in self._around))

    def step_s(self, place: int) -> Float64:
        return np.asarray(sum(weight * self._step_s(decodes, costs, place) for weight, decodes, costs in self._around))

    def _tokens(self, decodes: CountedDecodes, place: int) -> Float64:
        steps = self._setting(decodes, place).steps
        weights = self._estimator.text_weights(len(steps.steps))
        return np.asarray((weights @ np.array(steps.tokens)) / (weights @ np.array(steps.steps)))

    def _step_s(self, decodes: CountedDecodes, there: StepCosts, place: int) -> Float64:
        setting = self._setting(decodes, place)
        moved_s = mean_pass_s(setting.replayed or setting, self._costs) - mean_pass_s(setting, there)
        relative = relative_steps(decodes.plain, [setting.decoded], self._estimator)[..., 0]
        return np.asarray(there.plain_s[..., 0] * relative + moved_s)

    def _setting(self, decodes: CountedDecodes, place: int) -> CountedSetting:
        return next(setting for setting in decodes.settings if setting.values == self._values[place])


def measured_contexts(profile: Profile, drafter: MeasuredDrafter, temperature: float) -> tuple[int, ...]:
    """Return the context lengths that a drafter was measured at, rising.

    A drafter that was measured right after the prompts alone counts for the first context length that was timed.
    """
    measured = drafter.trees_at(temperature) or drafter.decodes_at(temperature)
    if len(measured) == 1:
        return (profile.step_latencies[0].context_tokens,)
    return tuple(each.context_tokens for each in measured)


def relative_steps(plain: DecodedTexts, others: Sequence[DecodedTexts], estimator: Estimator = OBSERVED) -> Float64:
    """Return (…, others): seconds of a step over those of a plain step, all sequences together.

    Args:
        plain: J sequences decoded plainly.
        others: the same sequences decoded otherwise.
        estimator: how often each sequence counts.
    """
    weights: Int64 = estimator.text_weights(plain.texts)
    plain_s = (weights @ plain.seconds.samples_s) / (weights @ np.array(plain.steps))
    seconds = weights @ np.stack([each.seconds.samples_s for each in others], axis=-1)
    steps = weights @ np.stack([np.array(each.steps) for each in others], axis=-1)
    return np.asarray(seconds / steps / np.asarray(plain_s)[..., None])


def mean_pass_s(counted: CountedSetting | ReplayedTexts, costs: StepCosts) -> Float64:
    """Return (…,): mean seconds of the target's pass in a step."""
    return np.asarray(costs.verify.at(np.array(counted.pass_tokens)) @ (np.array(counted.passes) / sum(counted.passes)))
