"""What is worth racing at some batch sizes: plain decoding, what is planned there and at the sizes beside, good chains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treeopt.errors import InfeasibleError
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.tokens import TokenModel
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, chain

PLAIN = chain(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRivals:
    """What is raced at one batch size."""

    trees: tuple[TokenTree, ...]
    """Plain decoding first."""
    chosen: TokenTree | None
    """What was planned there; None where nothing was."""
    predicted: Mapping[TokenTree, Option]
    """Without those beyond what was measured."""
    model: StepModel | None = None
    """What predicts them; None where nothing does."""


def plans_of_sizes(profile: Profile, request: PlanRequest, sizes: Sequence[int]) -> dict[int, Plan]:
    """Return the plan of each batch size, rising, all by the rule and temperature of that for the fewest texts.

    Args:
        profile: what was measured, at these batch sizes or around them.
        request: what is planned for; the condition is none of it.
        sizes: batch sizes.

    Raises InfeasibleError for sizes that were not measured, nor others around them.
    """
    fewest, *others = sorted(sizes)
    first = requested_plan(profile, replace(request, context_tokens=None, batch_size=fewest, extrapolate=False))
    request = replace(request, rule=first.rule, temperature=first.temperature)
    found = {
        size: requested_plan(profile, replace(request, context_tokens=None, batch_size=size, extrapolate=False))
        for size in others
    }
    return {fewest: first, **found}


def planned_rivals(plans: Mapping[int, Plan]) -> dict[int, BatchRivals]:
    """Return for each batch size plain decoding, the plan's choice there and at the sizes beside, and chains.

    These are the best and, as far as they can be predicted, those that are a token shorter and longer: a choice that is
    raced against nothing like it would prove little.

    Args:
        plans: by batch size, rising.
    """
    found, choices = {}, [each.choice.tree for each in plans.values()]
    for place, (size, made) in enumerate(plans.items()):
        beside, length = choices[max(0, place - 1) : place + 2], made.chain.tree.max_depth
        near = _predictions(made.model, [chain(max(0, length - 1)), chain(length + 1)])
        trees = tuple(dict.fromkeys([PLAIN, made.choice.tree, made.chain.tree, *beside, *near]))
        found[size] = BatchRivals(
            trees=trees, chosen=made.choice.tree, predicted=_predictions(made.model, trees), model=made.model
        )
    return found


def rivals_of(
    profile: Profile, tokens: TokenModel, chosen: Mapping[int, TokenTree | None], trees: Sequence[TokenTree]
) -> dict[int, BatchRivals]:
    """Return for each batch size plain decoding and some trees.

    Args:
        profile: what was measured.
        tokens: the acceptance that is predicted by.
        chosen: by batch size what was planned there; None for whatever is predicted to be fastest.
        trees: raced at every size.
    """
    raced = tuple(dict.fromkeys([PLAIN, *trees]))
    found = {}
    for size, planned in chosen.items():
        model = _model(profile, tokens, size)
        predicted = {} if model is None else _predictions(model, raced)
        best = max(predicted.values(), key=lambda each: each.speedup.value).tree if len(predicted) > 1 else None
        found[size] = BatchRivals(trees=raced, chosen=planned or best, predicted=predicted, model=model)
    return found


def _model(profile: Profile, tokens: TokenModel, size: int) -> StepModel | None:
    try:
        return model_at(profile.at(None, size, tokens.acceptance.sampling), tokens)
    except InfeasibleError:
        return None


def _predictions(model: StepModel, trees: Sequence[TokenTree]) -> dict[TokenTree, Option]:
    found = {}
    for tree in trees:
        try:
            found[tree] = model.predict(tree)
        except InfeasibleError:  # larger than what was measured
            continue
    return found
