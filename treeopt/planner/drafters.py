"""The best option of every drafter that a profile contains, the best of all, and the best at every context length."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.drafter_costs import predict_settings, tree_model
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import OBJECTIVES, Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import RuleTrees, plan_rule, requested_plan
from treeopt.planner.request import PlanRequest, limit_nodes
from treeopt.planner.resampling import near_best
from treeopt.planner.segments import Segment, find_winners
from treeopt.planner.tokens import token_models
from treeopt.records.identity import Identity
from treeopt.records.measured_drafter import MeasuredDrafter, MeasuredSettings, MeasuredTrees
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.trees import Provenance, TreeFile
from treeopt.version import TOOL


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DrafterChoice(ArrayRecord):
    """The best option of one drafter, and its uncertainty."""

    option: Option
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node; None if the drafter builds its own trees."""
    draws: Float64
    """(draws,): draws of the speedup."""
    fastest_draws: Float64
    """(draws,): draws of the speedup of the drafter's fastest option."""
    bound: float | None = None
    """By the acceptance table, no tree of the drafter has a larger speedup; None if the drafter builds its own trees."""


def drafter_choices(profile: Profile, request: PlanRequest, *, plan: Plan | None = None) -> tuple[DrafterChoice, ...]:
    """Return the choice of each drafter: first the draft model's, or plain decoding, then those of the other drafters.

    A drafter is left out if it was not measured at the temperature and operating point, if no setting fits the request,
    or if the request names a rule that its trees are not verified by.  Drafters that build their own trees were
    measured with single sequences and are left out for batches.

    Args:
        profile: what was measured.
        request: what is planned for.
        plan: that of the draft model, if it was made already.

    Raises as `requested_plan` does.
    """
    plan = plan or requested_plan(profile, request)
    choices = [_plan_choice(plan)]
    if request.rule in (None, TARGET_RULE) or plan.temperature == 0:
        drafters = [_drafter_choice(drafter, profile, request, plan) for drafter in profile.drafters]
        choices += [choice for choice in drafters if choice is not None]
    return tuple(choices)


def best_drafter(choices: Sequence[DrafterChoice], objective: str = "speed") -> DrafterChoice:
    """Return the best choice by an objective, in a tie the first."""
    return max(choices, key=lambda choice: OBJECTIVES[objective](choice.option))


def choice_confidence(choices: Sequence[DrafterChoice]) -> float:
    """Return the probability that the fastest choice is within 1 % of the fastest option of all drafters."""
    fastest = np.max([choice.fastest_draws for choice in choices], axis=0)
    return near_best(best_drafter(choices).draws, fastest)


def chosen_drafter(
    choices: Sequence[DrafterChoice], name: str, request: PlanRequest, profile: Profile
) -> DrafterChoice:
    """Return the best choice of one drafter; raises InfeasibleError, naming the drafters, if there is none."""
    if named := [choice for choice in choices if choice.option.drafter.name == name]:
        return best_drafter(named, request.objective)
    without_rule = "" if request.rule in (None, TARGET_RULE) else f", or plan without --rule {request.rule}"
    if any(drafter.name == name for drafter in profile.drafters):
        remedy = f"Plan with another --budget, --batch-size or --temperature{without_rule}"
    else:
        remedy = f"Profile with --drafter {name}{without_rule}"
    raise InfeasibleError(
        f"drafter {name}: no measurement of it fits the request. Measured here: "
        f"{', '.join(choice.option.drafter.name for choice in choices)}. {remedy}."
    )


def drafters_over_contexts(
    profile: Profile, request: PlanRequest, plans: Sequence[Plan], name: str | None = None
) -> tuple[Segment, ...]:
    """Return the fastest option at every context length, among the best of each drafter at the measured ones.

    Args:
        profile: what was measured.
        request: what is planned for; its context length does not count.
        plans: of the draft model for single sequences at one temperature, by increasing context length.
        name: only this drafter.

    Context lengths at which none of them was measured are left out.  Returns nothing if a single one was timed.
    """
    if len(plans) < 2:
        return ()
    best: dict[object, Option] = {}
    for plan in plans:
        point_request = replace(
            request, temperature=plan.temperature, context_tokens=plan.context_tokens, batch_size=1, extrapolate=False
        )
        for choice in drafter_choices(profile, point_request, plan=plan):
            option = choice.option
            if name in (None, option.drafter.name):
                best[option.drafter, option.rule, option.tree] = option
    order = ["model", *(drafter.name for drafter in profile.drafters)]
    rivals = sorted(best.values(), key=lambda option: order.index(option.drafter.name))
    sampling, temperature = plans[0].model.acceptance.sampling, plans[0].temperature

    @cache
    def options_at(context: int) -> list[Option | None]:
        point = profile.at(context, 1, sampling)
        return [predict_option(rival, profile, request, point) for rival in rivals]

    def fastest(context: int) -> int | None:
        speedups = {index: option.speedup.value for index, option in enumerate(options_at(context)) if option}
        return max(speedups, key=lambda index: speedups[index], default=None)

    winners = find_winners([plan.context_tokens for plan in plans], fastest)
    return tuple(
        Segment(temperature=temperature, batch_sizes=(1, 1), context_tokens=ends, option=predicted)
        for ends, index in winners
        if index is not None and (predicted := options_at(ends[0])[index])
    )


def predict_option(
    option: Option, profile: Profile, request: PlanRequest, point: OperatingPoint, *, max_nodes: int = 0
) -> Option | None:
    """Return an option, which may have been planned from another profile, with its prediction at an operating point.

    Args:
        option: a drafter with a tree or a setting.
        profile: what was measured.
        request: whether acceptance is smoothed.
        point: one of the profile's.
        max_nodes: up to how many nodes the draft model's curves are extrapolated, if larger than what was measured.

    Returns None beyond what was measured.
    """
    temperature = point.sampling.temperature
    model: StepModel | None
    if option.drafter.name == "model":
        acceptance = profile.acceptance(rule=option.rule, temperature=temperature)
        tokens = token_models(profile, acceptance, raw=request.raw).at(point.context_tokens)
        model = model_at(point, tokens, max_nodes=max_nodes)
    else:
        drafter = next((drafter for drafter in profile.drafters if drafter.label == option.drafter.label), None)
        if drafter is None:
            return None
        if decodes := drafter.decodes_at(temperature):
            settings = predict_settings(profile, drafter, decodes, point, max_nodes=option.verify_tokens)
            return next((setting for setting, _ in settings if setting.drafter == option.drafter), None)
        model = tree_model(drafter, drafter.trees_at(temperature), point, raw=request.raw)
    return None if model is None or not model.covers(option.tree) else model.predict(option.tree)


def tree_file(plan: Plan, profile: Profile, *, source: str, choice: DrafterChoice | None = None) -> TreeFile:
    """Return the tree file of a choice, with its prediction and provenance.

    Args:
        plan: that of the draft model.
        profile: what it was planned from.
        source: what the file names as its source.
        choice: that of a drafter; by default the plan's.
    """
    choice = choice or _plan_choice(plan)
    option = choice.option
    return TreeFile(
        tree=option.tree,
        drafter=option.drafter,
        reach=choice.reach,
        provenance=Provenance(
            tool=TOOL,
            created=profile.created,
            source=source,
            **asdict(Identity.of(profile.pair, profile.machine)),
            rule=option.rule,
            lossy=option.lossy or None,
            temperature=plan.temperature,
            tokens_per_step=option.tokens_per_step.value,
            step_s=option.step_s.value,
            speedup=option.speedup.value,
        ),
    )


def _plan_choice(plan: Plan, option: Option | None = None) -> DrafterChoice:
    """Return an option of a plan, by default its choice."""
    option = option or plan.choice
    trees = list(dict.fromkeys(rival.tree for rival in (option, plan.chain, plan.tree, *plan.budgets)))
    draws = plan.model.draw_speedups(trees)
    return DrafterChoice(
        option=option,
        reach=plan.solution.table.reach(option.tree),
        draws=draws[:, 0],
        fastest_draws=draws.max(axis=1),
        bound=plan.fastest.bound if plan.objective == "speed" else None,
    )


def _drafter_choice(
    drafter: MeasuredDrafter, profile: Profile, request: PlanRequest, plan: Plan
) -> DrafterChoice | None:
    trees, decodes = drafter.trees_at(plan.temperature), drafter.decodes_at(plan.temperature)
    if plan.model.acceptance.sampling not in [measured.sampling for measured in trees or decodes]:
        return None
    if trees:
        drafter_tree = drafter_plan(drafter, trees, request, plan)
        if drafter_tree is None:
            return None
        options = (drafter_tree.chain, drafter_tree.tree, *drafter_tree.budgets)
        drafting = [option for option in options if option.tree.nodes > 1]
        return _plan_choice(drafter_tree, max(drafting, key=OBJECTIVES[request.objective])) if drafting else None
    return None if plan.model.point.batch_size > 1 else _best_setting(drafter, decodes, profile, request, plan)


def drafter_plan(
    drafter: MeasuredDrafter, trees: tuple[MeasuredTrees, ...], request: PlanRequest, plan: Plan
) -> Plan | None:
    """Return the plan of a drafter of static trees; None if drafting was not timed at the operating point.

    Args:
        drafter: its times.
        trees: its acceptance at the temperature.
        request: what is planned for.
        plan: that of the draft model, at the same operating point.
    """
    model = tree_model(drafter, trees, plan.model.point, raw=request.raw)
    if model is None:
        return None
    max_nodes = limit_nodes(model.costs.max_nodes, request, plan.memory, plan.model.point)
    return plan_rule(RuleTrees.solve(model, max_nodes, request), model, request.objective)


def _best_setting(
    drafter: MeasuredDrafter, decodes: Sequence[MeasuredSettings], profile: Profile, request: PlanRequest, plan: Plan
) -> DrafterChoice | None:
    point = plan.model.point
    max_nodes = limit_nodes(point.max_nodes, request, plan.memory, point)
    settings = predict_settings(profile, drafter, decodes, point, max_nodes=max_nodes)
    if not settings:
        return None
    option, draws = max(settings, key=lambda setting: OBJECTIVES[request.objective](setting[0]))
    fastest_draws = np.max([draws for _, draws in settings], axis=0)
    return DrafterChoice(option=option, draws=draws, fastest_draws=fastest_draws)
