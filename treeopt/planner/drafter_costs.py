"""Costs of steps with other drafters than the draft model.

For static trees, the drafter's times take the place of the draft model's in the ordinary model of a step.  Drafters that
build their own trees were decoded with, interleaved with plain decoding:

    step_s     = overhead_s + sum over sizes of fraction[size] * verify_s[size]
    overhead_s = plain_s * (seconds of a step / seconds of a plain step)
                 - sum over sizes of fraction[size] * verify_s[size] where the sequences were decoded

with plain_s and verify_s of the profile's curves.  Tokens, steps and seconds are resampled together, by sequence.  Between
the context lengths of the decoded sequences, all of this is interpolated.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import EXTRAPOLATED, StepCosts, step_costs
from treeopt.planner.curves import MIN_S
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option, predictions
from treeopt.planner.resampling import OBSERVED, SEED, Estimator, Resampled
from treeopt.planner.tokens import TokenModels, token_model
from treeopt.records.measured_drafter import (
    CountedSequences,
    DecodedSequences,
    MeasuredDrafter,
    MeasuredSettings,
    MeasuredTrees,
)
from treeopt.records.operating_point import OperatingPoint, weighted_neighbours
from treeopt.records.profile import Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.trees import chain
from treeopt.trees.drafter_setting import SettingValues


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


def tree_model(
    drafter: MeasuredDrafter, measured: tuple[MeasuredTrees, ...], point: OperatingPoint, *, raw: bool = False
) -> StepModel | None:
    """Return the model of a drafter's steps with static trees; None if drafting was not timed at the operating point.

    Args:
        drafter: its times.
        measured: its acceptance at one temperature, by increasing context length.
        point: the operating point.
        raw: take the acceptance as measured, without smoothing.
    """
    drafting = drafter.replace_draft_times(point)
    if drafting is None:
        return None
    return model_at(drafting, _tree_tokens(measured, raw).at(point.context_tokens), drafter=drafter.setting)


@lru_cache(maxsize=16)
def _tree_tokens(measured: tuple[MeasuredTrees, ...], raw: bool) -> TokenModels:
    """Return the token models; cached, because plans of one profile share the draws."""
    models = []
    for trees in measured:
        model = token_model(replace(trees.acceptance, context_tokens=trees.context_tokens), raw=raw)
        models.append(replace(model, root_ranks=trees.root_ranks))
    return TokenModels(tuple(models))


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
    decoded_at = [point_of_decoding(profile, item.sampling, item.context_tokens) for _, item in decodes]
    max_nodes = min(max_nodes, *(timed.max_nodes for timed in (point, *decoded_at)))
    fitting = [item for item in measured[0].settings if item.max_tokens <= max_nodes]
    if not fitting:
        return []
    values = [item.values for item in fitting]
    observed = _setting_steps(values, decodes, point, decoded_at, OBSERVED)
    drawn = _setting_steps(values, decodes, point, decoded_at, Resampled(np.random.default_rng(SEED)))
    overhead_s, drawn_overhead_s = shrink_overheads(observed.overhead_s, drawn.overhead_s)
    step_s = overhead_s + observed.pass_s
    drawn_s = np.maximum(drawn_overhead_s + drawn.pass_s, MIN_S)
    if step_s.min() <= 0:
        raise InfeasibleError(EXTRAPOLATED)
    speedups, drawn_speedups = observed.tokens / step_s * observed.plain_s, drawn.tokens / drawn_s * drawn.plain_s
    predicted = predictions((observed.tokens, step_s, speedups), (drawn.tokens, drawn_s, drawn_speedups))
    options = []
    for index, (item, prediction) in enumerate(zip(fitting, predicted, strict=True)):
        setting = drafter.setting_with(item.values)
        option = Option(
            drafter=setting,
            tree=chain(setting.longest_draft),
            rule=TARGET_RULE,
            verify_tokens=item.max_tokens,
            prediction=prediction,
        )
        options.append((option, drawn_speedups[:, index]))
    return options


class _SettingSteps(NamedTuple):
    """Steps with several settings at an operating point, (…, settings): as observed, or draws."""

    tokens: Float64
    overhead_s: Float64
    """Outside the target's pass."""
    pass_s: Float64
    """Mean of the target's pass."""
    plain_s: Float64
    """(…, 1): a plain step."""


def _setting_steps(
    values: Sequence[SettingValues],
    decodes: Sequence[tuple[float, MeasuredSettings]],
    point: OperatingPoint,
    decoded_at: Sequence[OperatingPoint],
    estimator: Estimator,
) -> _SettingSteps:
    """Return the steps of some settings, interpolated between the context lengths of the decoded sequences.

    Args:
        values: of the settings.
        decodes: the measurements, with their weights.
        point: the operating point.
        decoded_at: where the passes of each measurement were timed.
        estimator: of times, and how often each sequence counts.
    """
    for _, counted in decodes:
        estimator.sequence_weights(counted.plain.count)  # draw these before those of replayed sequences
    costs = pass_costs(point, estimator)
    costs_of_decodes = [costs if timed == point else pass_costs(timed, estimator) for timed in decoded_at]
    parts = []
    for (weight, counted), decoding_costs in zip(decodes, costs_of_decodes, strict=True):
        by_values = {setting.values: setting for setting in counted.settings}
        decoded = [by_values[item].decoded for item in values]
        sequences = [by_values[item].sequences for item in values]
        decoding_s = decoding_costs.plain_s * relative_step_s(counted.plain, decoded, estimator)
        overhead_s = decoding_s - _mean_passes_s(decoded, decoding_costs)
        tokens = np.stack([_tokens_per_step(counts, estimator) for counts in sequences], axis=-1)
        parts.append(weight * np.stack([tokens, overhead_s, _mean_passes_s(sequences, costs)]))
    tokens, overhead_s, pass_s = np.sum(parts, axis=0)
    return _SettingSteps(tokens, overhead_s, pass_s, costs.plain_s)


def _tokens_per_step(sequences: CountedSequences, estimator: Estimator) -> Float64:
    weights = estimator.sequence_weights(sequences.count)
    return np.asarray((weights @ np.array(sequences.tokens)) / (weights @ np.array(sequences.steps)))


def shrink_overheads(observed_s: Float64, drawn_s: Float64) -> tuple[Float64, Float64]:
    """Move the overheads of a drafter's settings to their mean, as far as noise explains how they differ.

    The fastest of several noisy settings would otherwise be predicted too fast.  The mean weighs settings by precision, and
    the fraction of the differences that remains is 1 - noise / spread, at least 0 (Efron and Morris, 1973).

    Args:
        observed_s: (settings,).
        drawn_s: (draws, settings).

    Returns both, shrunk alike.
    """
    precision = 1 / np.maximum(drawn_s.var(axis=0), MIN_S**2)
    weights = precision / precision.sum()
    spread = np.sum((observed_s - observed_s @ weights) ** 2)
    noise = (drawn_s - (drawn_s @ weights)[:, None]).var(axis=0).sum()
    kept = max(0.0, 1 - noise / spread) if spread > 0 else 0.0

    def shrink(overheads_s: Float64) -> Float64:
        mean_s = (overheads_s @ weights)[..., None]
        return np.asarray(mean_s + kept * (overheads_s - mean_s))

    return shrink(observed_s), shrink(drawn_s)


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


def _mean_passes_s(settings: Sequence[CountedSequences], costs: StepCosts) -> Float64:
    """Return (…, settings)."""
    return np.stack([mean_pass_s(sequences, costs) for sequences in settings], axis=-1)


def mean_pass_s(sequences: CountedSequences, costs: StepCosts) -> Float64:
    """Return (…,): mean seconds of the target's pass in a step."""
    passes = sequences.total_passes
    return np.asarray(costs.verify.at(np.array(sequences.pass_tokens)) @ (np.array(passes) / sum(passes)))
