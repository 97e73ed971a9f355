"""Costs of steps with other drafters than the draft model.

For static trees, the drafter's times take the place of the draft model's in the ordinary model of a step.  Drafters that
build their own trees were decoded with, interleaved with plain decoding:

    step_s = plain_s * (seconds of a step / seconds of a plain step)
             + sum over sizes of fraction[size] * (verify_s[size] here - verify_s[size] where the sequences were decoded)

with plain_s of the profile's curves.  Tokens, steps and seconds are resampled together, by sequence.  Between the context
lengths of the decoded sequences, all of this is interpolated.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import EXTRAPOLATED, StepCosts, step_costs
from treeopt.planner.curves import MIN_S
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option, Prediction
from treeopt.planner.resampling import OBSERVED, SEED, Estimator, Resampled, estimate
from treeopt.planner.tokens import TokenModels, token_model
from treeopt.records.measured_drafter import (
    DecodedSequences,
    MeasuredDrafter,
    MeasuredSetting,
    MeasuredSettings,
    MeasuredTrees,
    ReplayedSequences,
)
from treeopt.records.operating_point import OperatingPoint, weighted_neighbours
from treeopt.records.profile import Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.trees import chain
from treeopt.trees.drafter_setting import SettingValue

Values = tuple[SettingValue, ...]


def pass_costs(point: OperatingPoint, estimator: Estimator = OBSERVED) -> StepCosts:
    """Return the curves of the target's passes alone, without the overhead of a draft model's steps."""
    return step_costs(point, rule=TARGET_RULE, estimator=estimator, passes_only=True)


def point_of_decoding(profile: Profile, sampling: Sampling, context_tokens: int) -> OperatingPoint:
    """Return the measured operating point of single sequences that is nearest to a context length.

    Raises InfeasibleError if single sequences were not measured.
    """
    latencies = profile.latencies_at(sampling.temperature)
    contexts = [latency.context_tokens for latency in latencies if latency.batch_size == 1]
    nearest = int(np.clip(context_tokens, min(contexts), max(contexts))) if contexts else None
    return profile.at(nearest, 1, sampling)


def tree_models(
    drafter: MeasuredDrafter, measured: Sequence[MeasuredTrees], *, raw: bool = False
) -> Callable[[OperatingPoint], StepModel]:
    """Return a function from an operating point to the model of a drafter's steps with static trees.

    Args:
        drafter: its times.
        measured: its acceptance at one temperature, by increasing context length.
        raw: take the acceptance as measured, without smoothing.

    The function raises InfeasibleError if drafting was not timed at the operating point.
    """
    models = []
    for trees in measured:
        model = token_model(replace(trees.acceptance, context_tokens=trees.context_tokens), raw=raw)
        models.append(replace(model, root_ranks=trees.ranks))
    tokens = TokenModels(tuple(models))

    def model_at_point(point: OperatingPoint) -> StepModel:
        drafting = drafter.replace_draft_times(point)
        return model_at(drafting, tokens.at(point.context_tokens), drafter=drafter.setting())

    return model_at_point


def predict_settings(
    profile: Profile,
    drafter: MeasuredDrafter,
    measured: Sequence[MeasuredSettings],
    point: OperatingPoint,
    *,
    max_nodes: int,
) -> list[tuple[Option, Float64]]:
    """Return the settings whose largest pass was timed and has at most `max_nodes` tokens, each with draws of its speedup.

    Args:
        profile: the target's times.
        drafter: builds its own trees.
        measured: what was decoded at one temperature, by increasing context length, with the same settings.
        point: the operating point.
        max_nodes: most tokens of a pass.

    Raises InfeasibleError if an extrapolated time is not above 0.
    """
    by_context = {decodes.context_tokens: decodes for decodes in measured}
    decodes = weighted_neighbours(by_context, point.context_tokens)
    observed = _SettingCosts(profile, point, decodes, OBSERVED)
    drawn = _SettingCosts(profile, point, decodes, Resampled(np.random.default_rng(SEED)))
    options = []
    for counted in measured[0].settings:
        if counted.max_tokens > min(max_nodes, observed.max_nodes):
            continue
        tokens, step_s = observed.tokens(counted.values), observed.step_s(counted.values)
        if step_s <= 0:
            raise InfeasibleError(EXTRAPOLATED)
        drawn_tokens, drawn_s = drawn.tokens(counted.values), np.maximum(drawn.step_s(counted.values), MIN_S)
        drawn_speedups = drawn_tokens / drawn_s * drawn.plain_s
        setting = drafter.setting(counted.values)
        option = Option(
            drafter=setting,
            tree=chain(setting.longest_draft),
            rule=TARGET_RULE,
            verify_tokens=counted.max_tokens,
            prediction=Prediction(
                tokens_per_step=estimate(float(tokens), drawn_tokens),
                step_s=estimate(float(step_s), drawn_s),
                speedup=estimate(float(tokens / step_s * observed.plain_s), drawn_speedups),
            ),
        )
        options.append((option, drawn_speedups))
    return options


class _SettingCosts:
    """Tokens and seconds of steps with each setting at an operating point, (…): as observed, or draws."""

    def __init__(
        self,
        profile: Profile,
        point: OperatingPoint,
        decodes: Sequence[tuple[float, MeasuredSettings]],
        estimator: Estimator,
    ) -> None:
        for _, counted in decodes:
            estimator.sequence_weights(counted.plain.count)  # draw these before those of replayed sequences
        self._costs, self._estimator = pass_costs(point, estimator), estimator
        self._decodes = []
        """Weight, counts, and costs of the passes where they were decoded."""
        for weight, counted in decodes:
            decoded_at = point_of_decoding(profile, counted.sampling, counted.context_tokens)
            costs = self._costs if decoded_at == point else pass_costs(decoded_at, estimator)
            self._decodes.append((weight, counted, costs))

    @property
    def max_nodes(self) -> int:
        """Tokens of the largest pass that was timed, here and where the sequences were decoded."""
        return min(self._costs.max_nodes, *(costs.max_nodes for _, _, costs in self._decodes))

    @property
    def plain_s(self) -> Float64:
        return np.asarray(self._costs.plain_s[..., 0])

    def tokens(self, values: Values) -> Float64:
        """Return the tokens per step."""
        total = np.zeros(())
        for weight, counted, _ in self._decodes:
            measured = _find_setting(counted, values).sequences
            tokens, steps = np.array(measured.tokens), np.array(measured.steps)
            weights = self._estimator.sequence_weights(len(steps))
            total = total + weight * np.asarray((weights @ tokens) / (weights @ steps))
        return total

    def step_s(self, values: Values) -> Float64:
        total = np.zeros(())
        for weight, counted, costs in self._decodes:
            setting = _find_setting(counted, values)
            difference_s = mean_pass_s(setting.replayed or setting, self._costs) - mean_pass_s(setting, costs)
            relative = relative_step_s(counted.plain, [setting.decoded], self._estimator)[..., 0]
            total = total + weight * (costs.plain_s[..., 0] * relative + difference_s)
        return total


def _find_setting(decodes: MeasuredSettings, values: Values) -> MeasuredSetting:
    return next(setting for setting in decodes.settings if setting.values == values)


def measured_contexts(profile: Profile, drafter: MeasuredDrafter, temperature: float) -> tuple[int, ...]:
    """Return the context lengths at which a drafter was measured, increasing.

    A drafter that was measured once, right after the prompts, counts for the first context length that was timed.
    """
    measured = drafter.trees_at(temperature) or drafter.decodes_at(temperature)
    if len(measured) == 1:
        return (profile.step_latencies[0].context_tokens,)
    return tuple(measurement.context_tokens for measurement in measured)


def relative_step_s(
    plain: DecodedSequences, others: Sequence[DecodedSequences], estimator: Estimator = OBSERVED
) -> Float64:
    """Return (…, others): seconds of a step relative to a plain step, over all sequences together.

    Args:
        plain: J sequences decoded plainly.
        others: the same sequences decoded with a drafter.
        estimator: how often each sequence counts.
    """
    weights: Int64 = estimator.sequence_weights(plain.count)
    plain_s = (weights @ plain.seconds.samples_s) / (weights @ np.array(plain.steps))
    seconds = weights @ np.stack([decoded.seconds.samples_s for decoded in others], axis=-1)
    steps = weights @ np.stack([np.array(decoded.steps) for decoded in others], axis=-1)
    return np.asarray(seconds / steps / np.asarray(plain_s)[..., None])


def mean_pass_s(counted: MeasuredSetting | ReplayedSequences, costs: StepCosts) -> Float64:
    """Return (…,): mean seconds of the target's pass in a step."""
    fractions = np.array(counted.passes) / sum(counted.passes)
    return np.asarray(costs.verify.at(np.array(counted.pass_tokens)) @ fractions)
