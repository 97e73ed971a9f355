"""What steps of a measured drafter cost, from texts that were decoded with it and plainly, in turn.

    step_s(T) = plain_s * (seconds a step with T / seconds a plain step)

with plain_s that of the profile's curves where the texts were decoded.  What of that the target's pass over T does not
explain is fitted to its levels and nodes, so that it is known of every tree; no part of it was timed by itself:

    rest_s(T) = per_step_s + per_level_s * levels + per_drafted_s * internal nodes + per_node_s * nodes
                + branching_s where T branches

none of them below 0, by `treeopt.planner.overheads.least_squares` relative to the steps' times.  A pass that drafts all
levels at once, and the refill of a head's cache, are part of per_step_s; a pass for every level is per_level_s.
Between context lengths at which trees were decoded, these five lie on straight lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64, Int64
from treeopt.planner.condition import Condition, condition
from treeopt.planner.costs import Reading, StepCosts, step_costs
from treeopt.planner.curves import Curve, Knots
from treeopt.planner.overheads import branches, least_squares
from treeopt.planner.request import Where
from treeopt.records.measured_drafter import DecodedTexts, MeasuredTrees
from treeopt.records.profile import Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.trees import TokenTree

Weights = Callable[[int], Int64]
"""From a number of texts to (draws, texts), how often each of them counts."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DecodedTrees(ShortRepr):
    """Static trees of one drafter, and the condition under which they were decoded."""

    measured: MeasuredTrees
    at: Condition

    def rest_s(self, there: StepCosts, weights: Int64 | None) -> Float64:
        """Return (…, 5): what of a step's seconds the target's pass does not explain, as fitted; arguments as below."""
        trees = [each.tree for each in self.measured.trees]
        relative = relative_steps(self.measured.plain, [each.decoded for each in self.measured.trees], weights)
        rest_s = there.plain_s * relative - there.verify.at(np.array([tree.nodes for tree in trees]))
        weight = 1 / (np.array([each.decoded.step_s for each in self.measured.trees]))
        return least_squares(_features(trees) * weight[:, None], rest_s * weight)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Drafted(ShortRepr):
    """Static trees of one drafter, decoded around one context length or mixed of several."""

    parts: tuple[tuple[float, DecodedTrees], ...]
    """Shares, which add up to 1, of what was decoded."""

    def costs(self, where: Condition, *, reading: Reading | None = None, weights: Weights | None = None) -> StepCosts:
        """Return the curves of a step under a condition.

        Args:
            where: whose verification counts; what is beside it is mixed by the shares.
            reading: what is read from the profile's timings, by default their medians.
            weights: how often each decoded text counts; by default each once.
        """
        weighed = [None if weights is None else weights(part.measured.plain.texts) for _, part in self.parts]
        curves = pass_costs(where, reading)
        rest = sum(
            share * part.rest_s(curves if part.at == where else pass_costs(part.at, reading), weight)
            for (share, part), weight in zip(self.parts, weighed, strict=True)
        )
        per_step_s, per_level_s, per_drafted_s, per_node_s, branching_s = np.moveaxis(np.asarray(rest), -1, 0)
        nodes = np.arange(curves.max_nodes + 1)
        return replace(
            curves,
            verify=replace(curves.verify, more_s=per_node_s, times=np.where(nodes > 1, nodes, 0)),
            draft=_levels(per_level_s, per_drafted_s, curves.max_nodes),
            overhead_s=per_step_s,
            branching_s=branching_s,
        )


def pass_costs(where: Condition, reading: Reading | None = None) -> StepCosts:
    """Return the curves of a condition with the target's passes as they are, nothing of a draft model's steps in them."""
    return step_costs(where.without_steps(), rule=GIVEN_TOKENS, reading=reading)


def decoded_at(profile: Profile, temperature: float, context_tokens: int) -> Condition:
    """Return the measured condition of single texts that is nearest to where some texts were decoded.

    Raises InfeasibleError where single texts were not measured.
    """
    contexts = [each.context_tokens for each in profile.latencies_at(temperature) if each.batch_size == 1]
    if not contexts:
        return condition(profile, temperature, Where(batch_size=1))  # which says what was measured
    context = int(np.clip(context_tokens, min(contexts), max(contexts)))
    return condition(profile, temperature, Where(context_tokens=context, batch_size=1))


def relative_steps(plain: DecodedTexts, others: Sequence[DecodedTexts], weights: Int64 | None = None) -> Float64:
    """Return (…, ways): seconds of a step over those of a plain step, all texts together.

    Args:
        plain: J texts decoded plainly.
        others: the same texts decoded in each way.
        weights: (draws, J), how often each text counts; by default each once.
    """
    weight = np.ones(plain.texts) if weights is None else weights
    plain_s = (weight @ plain.seconds.samples_s) / (weight @ np.array(plain.steps))
    seconds = weight @ np.stack([each.seconds.samples_s for each in others], axis=-1)
    steps = weight @ np.stack([np.array(each.steps) for each in others], axis=-1)
    return np.asarray(seconds / steps / plain_s[..., None])


def _features(trees: Sequence[TokenTree]) -> Float64:
    """Return (trees, 5): how often each of the five terms counts in a step with a tree."""
    return np.array(
        [[1.0, tree.max_depth, tree.draft_widths.sum(), tree.nodes, float(branches(tree))] for tree in trees]
    )


def _levels(per_level_s: Float64, per_drafted_s: Float64, most: int) -> Curve:
    """Return the seconds of drafting a level by its internal nodes; free where no level takes any."""
    if not per_level_s.any() and not per_drafted_s.any():
        return Curve.free(most)
    counts = np.arange(most + 1)
    ends = np.array([1, most]) if most > 1 else np.array([1])
    seconds = per_level_s[..., None] + per_drafted_s[..., None] * ends
    return Curve((Knots(1.0, ends, seconds),), counts, np.zeros(seconds.shape[:-1]), np.zeros_like(counts))
