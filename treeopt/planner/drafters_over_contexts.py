"""The fastest of all drafters at every context length between those that were timed, for single texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from treeopt.array_record import ShortRepr
from treeopt.planner.condition import Condition, condition
from treeopt.planner.contexts import context_models
from treeopt.planner.drafter_models import setting_predictions, tree_models
from treeopt.planner.drafters import DrafterChoice, drafter_choices
from treeopt.planner.model import StepModel
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest, Where
from treeopt.planner.switching import ranges, winners
from treeopt.records.measured_drafter import MeasuredDrafter
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree

UNKNOWN = 0.0
"""Speedup of what is larger or deeper than what was measured at a context, so that it is never the fastest there."""
Speedups = Callable[[Condition], list[float]]
"""From a condition to the speedup of each of some choices."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterSegment(ShortRepr):
    """A range of context lengths, both ends included, in which one drafter with one setting is the fastest."""

    context_tokens: tuple[int, int]
    choice: DrafterChoice
    """As planned at a measured context length; its numbers are of that."""
    speedup: float
    """At the start of the range."""


def drafters_over_contexts(
    profile: Profile, request: PlanRequest, plans: Sequence[Plan], name: str | None = None
) -> tuple[DrafterSegment, ...]:
    """Return what to run at every context length, of the best of every drafter at each one that was timed.

    Args:
        profile: what was measured.
        request: what is planned for; the context length is none of it.
        plans: of the draft model for single texts at one temperature, one for each measured context length, rising.
        name: only this drafter.

    Returns nothing where one context length was timed, or nothing suits.
    """
    chosen = [
        each
        for plan in plans
        for each in drafter_choices(profile, _at(request, plan), plan=plan)
        if name in (None, each.setting.name)
    ]
    order = ["model", *(each.name for each in profile.drafters)]
    rivals = sorted(
        {(each.setting, each.rule, each.tree): each for each in chosen}.values(),
        key=lambda each: order.index(each.setting.name),
    )
    if len(plans) < 2 or not rivals:
        return ()
    speeds = _speedups(profile, request, plans[0].temperature, rivals)
    known: dict[int, list[float]] = {}

    def fastest(context: int) -> int:
        where = condition(profile, plans[0].temperature, Where(context_tokens=context, batch_size=1))
        known[context] = [speed for each in speeds for speed in each(where)]
        return max(range(len(rivals)), key=known[context].__getitem__)

    measured = [plan.context_tokens for plan in plans]
    return tuple(
        DrafterSegment(context_tokens=ends, choice=rivals[place], speedup=known[ends[0]][place])
        for ends, place in ranges(winners(measured, fastest), measured[-1])
    )


def drafter_switches(segments: Sequence[DrafterSegment]) -> tuple[tuple[DrafterSegment, DrafterSegment], ...]:
    """Return every place where another drafter or setting becomes the fastest: what ends there, what begins."""
    return tuple(pairwise(segments))


def _at(request: PlanRequest, plan: Plan) -> PlanRequest:
    """Return the request at a plan's context length."""
    where = Where(context_tokens=plan.context_tokens, batch_size=1)
    return replace(request, temperature=plan.temperature, where=where)


def _speedups(
    profile: Profile, request: PlanRequest, temperature: float, rivals: Sequence[DrafterChoice]
) -> list[Speedups]:
    """Return functions of the speedups of `rivals`, which together follow their order if it is by drafter."""
    drafters = {each.name: each for each in profile.drafters}
    found: list[Speedups] = []
    for name in dict.fromkeys(each.setting.name for each in rivals):
        own = [each for each in rivals if each.setting.name == name]
        if name == "model":
            found += [_of_the_model(profile, request, temperature, each) for each in own]
        else:
            found.append(_of_a_drafter(profile, request, temperature, drafters[name], own))
    return found


def _of_the_model(profile: Profile, request: PlanRequest, temperature: float, choice: DrafterChoice) -> Speedups:
    acceptance = profile.acceptance(rule=choice.rule, temperature=temperature)
    models = context_models(profile, acceptance, raw=request.raw)
    tree = choice.tree
    assert tree is not None  # the draft model fills static trees
    return lambda where: _known_speedups(models.at(where.context_tokens).under(where), [tree])


def _of_a_drafter(
    profile: Profile, request: PlanRequest, temperature: float, drafter: MeasuredDrafter, own: list[DrafterChoice]
) -> Speedups:
    if trees := drafter.trees_at(temperature):
        models, filled = tree_models(profile, trees, raw=request.raw), [each.tree for each in own if each.tree]
        return lambda where: _known_speedups(models.at(where), filled)
    decodes, most = drafter.decodes_at(temperature), max(each.nodes for each in own)

    def of_settings(where: Condition) -> list[float]:
        predicted = setting_predictions(profile, decodes, where, max_nodes=most)
        speedups = {each.setting.values: each.speedup.value for each in predicted}
        return [speedups.get(each.setting.values, UNKNOWN) for each in own]

    return of_settings


def _known_speedups(model: StepModel, trees: Sequence[TokenTree]) -> list[float]:
    return [model.speedup(tree) if model.knows(tree) else UNKNOWN for tree in trees]
