"""What was measured of one drafter, at any context length: around the measured ones, or straight between two of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from treeopt.planner.condition import Condition, shares
from treeopt.planner.contexts import ContextModels
from treeopt.planner.counted import CountedPrediction, DecodedSettings, counted_predictions
from treeopt.planner.drafted import DecodedTrees, Drafted, decoded_at
from treeopt.planner.model import StepModel, TokenModel, token_model
from treeopt.records.measured_drafter import CountedDecodes, MeasuredDrafter, MeasuredTrees
from treeopt.records.profile import Profile

Decoded = TypeVar("Decoded", DecodedTrees, DecodedSettings)


@dataclass(frozen=True, eq=False)
class TreeModels:
    """The models of one drafter's static trees by context length."""

    drafts: ContextModels
    decoded: tuple[DecodedTrees, ...]
    """By rising context length, as many."""

    def at(self, where: Condition) -> StepModel:
        """Return the model of steps under a condition."""
        drafted = Drafted(parts=tuple(_shares(where.context_tokens, self.decoded)))
        drafts = self.drafts.at(where.context_tokens)
        return StepModel(condition=where, drafts=drafts, costs=drafted.costs(where), drafted=drafted)


def tree_models(profile: Profile, measured: Sequence[MeasuredTrees], *, raw: bool = False) -> TreeModels:
    """Return the models of static trees that were measured at one temperature.

    Args:
        profile: whose times count.
        measured: by rising context length.
        raw: take acceptance as measured, not smoothed.
    """
    return TreeModels(
        ContextModels(tuple(_token_model(each, raw) for each in measured)),
        tuple(DecodedTrees(measured=each, at=_at(profile, each)) for each in measured),
    )


def setting_predictions(
    profile: Profile, measured: Sequence[CountedDecodes], where: Condition, *, max_nodes: int
) -> tuple[CountedPrediction, ...]:
    """Return what decoding with some settings at one temperature says of a condition; see `counted_predictions`.

    Args:
        profile: whose times count.
        measured: by rising context length.
        where: the condition.
        max_nodes: most tokens of a pass.
    """
    decoded = tuple(DecodedSettings(measured=each, at=_at(profile, each)) for each in measured)
    return counted_predictions(_shares(where.context_tokens, decoded), where, max_nodes=max_nodes)


def measured_contexts(profile: Profile, drafter: MeasuredDrafter, temperature: float) -> tuple[int, ...]:
    """Return the context lengths that a drafter was measured at, rising.

    Where it was measured behind the prompts alone, that counts for the first context length that was timed.
    """
    found = drafter.trees_at(temperature) or drafter.decodes_at(temperature)
    if len(found) == 1:
        return (profile.step_latencies[0].context_tokens,)
    return tuple(each.context_tokens for each in found)


def _shares(context_tokens: int, decoded: Sequence[Decoded]) -> list[tuple[float, Decoded]]:
    """Return what a context length is mixed of: the nearest outside the measured ones."""
    contexts = [each.measured.context_tokens for each in decoded]
    inside = int(np.clip(context_tokens, contexts[0], contexts[-1]))
    return [(share, decoded[contexts.index(at)]) for share, at in shares(inside, contexts)]


def _token_model(measured: MeasuredTrees, raw: bool) -> TokenModel:
    acceptance = replace(measured.acceptance, context_tokens=measured.context_tokens)
    return replace(token_model(acceptance, raw=raw), root_ranks=measured.ranks)


def _at(profile: Profile, measured: MeasuredTrees | CountedDecodes) -> Condition:
    return decoded_at(profile, measured.sampling.temperature, measured.context_tokens)
