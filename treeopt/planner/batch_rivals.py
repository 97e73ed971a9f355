"""What is worth racing at some batch sizes: plain decoding, what is planned there and at the sizes beside, good chains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treeopt.errors import InfeasibleError
from treeopt.planner.condition import condition
from treeopt.planner.model import Candidate, StepModel, TokenModel, kind_of
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest, Where
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
    predicted: Mapping[TokenTree, Candidate]
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
    first = requested_plan(profile, replace(request, where=Where(batch_size=fewest)))
    request = replace(request, rule=first.rule, temperature=first.temperature)
    found = {size: requested_plan(profile, replace(request, where=Where(batch_size=size))) for size in others}
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
    profile: Profile, drafts: TokenModel, chosen: Mapping[int, TokenTree | None], trees: Sequence[TokenTree]
) -> dict[int, BatchRivals]:
    """Return for each batch size plain decoding and some trees.

    Args:
        profile: what was measured.
        drafts: the acceptance that is predicted by.
        chosen: by batch size what was planned there; None for whatever is predicted to be fastest.
        trees: raced at every size.
    """
    raced = tuple(dict.fromkeys([PLAIN, *trees]))
    found = {}
    for size, planned in chosen.items():
        model = _model(profile, drafts, size)
        predicted = {} if model is None else _predictions(model, raced)
        best = max(predicted.values(), key=lambda each: each.speedup.value).tree if len(predicted) > 1 else None
        found[size] = BatchRivals(trees=raced, chosen=planned or best, predicted=predicted, model=model)
    return found


def _model(profile: Profile, drafts: TokenModel, size: int) -> StepModel | None:
    try:
        return drafts.under(condition(profile, drafts.acceptance.temperature, Where(batch_size=size)))
    except InfeasibleError:
        return None


def _predictions(model: StepModel, trees: Sequence[TokenTree]) -> dict[TokenTree, Candidate]:
    found = {}
    for tree in trees:
        try:
            found[tree] = model.predict(kind_of(tree), tree)
        except InfeasibleError:  # larger than what was measured
            continue
    return found
