"""The fastest option of every drafter that a profile contains, and the fastest of all."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.drafter_costs import SettingOption, setting_options, tree_models
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import OBJECTIVES, Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import most_levels, requested_plan, rule_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import near_best
from treeopt.planner.rule_trees import RuleTrees
from treeopt.planner.segments import Segment, ranges, winners
from treeopt.planner.tokens import token_models
from treeopt.records.identity import Identity
from treeopt.records.measured_drafter import CountedDecodes, MeasuredDrafter, MeasuredTrees
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.trees import Provenance, TokenTree, TreeFile
from treeopt.version import TOOL

OptionsAt = Callable[[OperatingPoint], list[Option | None]]
"""From an operating point to each of some options with its prediction there; None beyond what was measured."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DrafterChoice(ArrayRecord):
    """The best option of one drafter, and how certain it is."""

    option: Option
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node of the tree; None for trees of its own."""
    draws: Float64
    """(draws,): what the speedup may be."""
    fastest_draws: Float64
    """(draws,): what the speedup of the drafter's fastest option may be."""
    bound: float | None = None
    """By the acceptance table, no tree of the drafter has a larger speedup; None for settings that were decoded with."""


def drafter_choices(profile: Profile, request: PlanRequest, *, plan: Plan | None = None) -> tuple[DrafterChoice, ...]:
    """Return the choice of each drafter: the draft model, or plain decoding, first, then those that were measured.

    A drafter is left out if it was not measured at the temperature and operating point, if no setting fits the request,
    and if the request names another rule than given tokens are verified by.  For batches that holds of settings that were
    decoded with, which are of single sequences.

    Args:
        profile: what was measured.
        request: what is planned for.
        plan: that of the draft model, if it was made already.

    Raises as `requested_plan` does.
    """
    plan = plan or requested_plan(profile, request)
    choices = [_of_plan(plan)]
    if request.rule in (None, GIVEN_TOKENS) or plan.temperature == 0:
        for drafter in profile.drafters:
            choice = _choice(drafter, profile, request, plan)
            choices += [] if choice is None else [choice]
    return tuple(choices)


def best_drafter(choices: Sequence[DrafterChoice], objective: str = "speed") -> DrafterChoice:
    """Return the best choice by an objective, in a tie the first."""
    return max(choices, key=lambda choice: OBJECTIVES[objective](choice.option))


def choice_confidence(choices: Sequence[DrafterChoice]) -> float:
    """Return the probability that the fastest choice is within 1 % of the fastest option of all drafters."""
    fastest = np.max([each.fastest_draws for each in choices], axis=0)
    return near_best(best_drafter(choices).draws, fastest)


def chosen_drafter(choices: Sequence[DrafterChoice], name: str) -> DrafterChoice:
    """Return the choice of one drafter; raises InfeasibleError if there is none, naming those that there are."""
    for each in choices:
        if each.option.drafter.name == name:
            return each
    raise InfeasibleError(
        f"drafter {name}: nothing was measured of it that suits. Measured here: "
        f"{', '.join(each.option.drafter.name for each in choices)}. Profile with --drafter {name}."
    )


def tree_file(plan: Plan, profile: Profile, *, source: str, choice: DrafterChoice | None = None) -> TreeFile:
    """Return the tree file of a choice, with its prediction and where that comes from.

    Args:
        plan: that of the draft model.
        profile: what it was planned from.
        source: what the file names as its source.
        choice: of a drafter; by default the plan's own.
    """
    choice = choice or _of_plan(plan)
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


def _of_plan(plan: Plan, option: Option | None = None) -> DrafterChoice:
    """Return an option of a plan, by default its choice."""
    option = option or plan.choice
    trees = list({each.tree: None for each in (option, plan.chain, plan.tree, *plan.budgets)})
    draws = plan.model.draw_speedups(trees)
    return DrafterChoice(
        option=option,
        reach=plan.solution.table.reach(option.tree),
        draws=draws[:, 0],
        fastest_draws=draws.max(axis=1),
        bound=plan.fastest.bound if plan.objective == "speed" else None,
    )


def _choice(drafter: MeasuredDrafter, profile: Profile, request: PlanRequest, plan: Plan) -> DrafterChoice | None:
    """Return the best of one drafter, None if nothing of it suits."""
    trees, decodes = drafter.trees_at(plan.temperature), drafter.decodes_at(plan.temperature)
    samplings = [each.sampling for each in trees] or [each.sampling for each in decodes]
    if plan.model.acceptance.sampling not in samplings:
        return None
    if trees:
        timed = drafter.timed_at(plan.model.point)
        return _best_tree(drafter_plan(drafter, trees, request, plan), request) if timed else None
    if plan.model.point.batch_size > 1:
        return None
    return _best_setting(drafter, decodes, profile, request, plan)


def drafter_plan(drafter: MeasuredDrafter, trees: Sequence[MeasuredTrees], request: PlanRequest, plan: Plan) -> Plan:
    """Return the plan of a drafter of static trees.

    Args:
        drafter: which.
        trees: what was measured of it at the temperature.
        request: what is planned for.
        plan: that of the draft model, at the same operating point.

    Raises InfeasibleError where drafting was not timed at the operating point.
    """
    model = tree_models(drafter, trees, raw=request.raw)(plan.model.point)
    most = _most_nodes(model.costs.max_nodes, request, plan)
    limits = [each for each in (most_levels(model, request), model.acceptance.table.max_depth) if each is not None]
    solved = RuleTrees.solve(model.tokens, most, min(limits, default=None), request.level_widths)
    return rule_plan(solved, model, request.objective)


def _best_tree(plan: Plan, request: PlanRequest) -> DrafterChoice | None:
    """Return the best tree that drafts at all, None if none fits."""
    drafting = [each for each in (plan.chain, plan.tree, *plan.budgets) if each.tree.nodes > 1]
    return _of_plan(plan, max(drafting, key=OBJECTIVES[request.objective])) if drafting else None


def _most_nodes(measured: int, request: PlanRequest, plan: Plan) -> int:
    """Return the most nodes that were measured, that are asked for, and that fit into memory beside the pair."""
    limits = [measured] if request.max_nodes is None else [measured, request.max_nodes]
    if plan.memory is not None:
        limits.append(plan.memory.max_nodes(plan.context_tokens, plan.model.point.batch_size))
    return min(limits)


def _best_setting(
    drafter: MeasuredDrafter, measured: Sequence[CountedDecodes], profile: Profile, request: PlanRequest, plan: Plan
) -> DrafterChoice | None:
    """Return the best of the settings that were decoded with, None if none fits."""
    point = plan.model.point
    most = _most_nodes(point.max_nodes, request, plan)
    options = setting_options(profile, drafter, measured, point, max_nodes=most)
    if not options:
        return None
    best: SettingOption = max(options, key=lambda each: OBJECTIVES[request.objective](each.option))
    fastest_draws = np.max([each.draws for each in options], axis=0)
    return DrafterChoice(option=best.option, draws=best.draws, fastest_draws=fastest_draws)


def drafters_over_contexts(
    profile: Profile, request: PlanRequest, plans: Sequence[Plan], name: str | None = None
) -> tuple[Segment, ...]:
    """Return the fastest option of all drafters at every context length, among the best of each at those timed.

    Args:
        profile: what was measured.
        request: what is planned for; its context length does not count.
        plans: of the draft model for single sequences at one temperature, one for each measured context, rising.
        name: only this drafter.

    Returns nothing if one context length was timed, or nothing suits.
    """
    chosen = [
        choice.option
        for plan in plans
        for choice in drafter_choices(profile, _request_at(request, plan), plan=plan)
        if name in (None, choice.option.drafter.name)
    ]
    order = ["model", *(each.name for each in profile.drafters)]
    rivals = sorted(
        {(each.drafter, each.rule, each.tree): each for each in chosen}.values(),
        key=lambda each: order.index(each.drafter.name),
    )
    if len(plans) < 2 or not rivals:
        return ()
    sampling, temperature = plans[0].model.acceptance.sampling, plans[0].temperature
    predictors = _predictors(profile, request, temperature, rivals)
    options: dict[int, list[Option | None]] = {}

    def fastest(context: int) -> int:
        point = profile.at(context, 1, sampling)
        options[context] = [option for predict in predictors for option in predict(point)]
        speedups = [0.0 if option is None else option.speedup.value for option in options[context]]
        return max(range(len(rivals)), key=speedups.__getitem__)

    measured = [plan.context_tokens for plan in plans]
    return tuple(
        Segment(
            temperature=temperature,
            batch_sizes=(1, 1),
            context_tokens=ends,
            option=options[ends[0]][place] or rivals[place],
        )
        for ends, place in ranges(winners(measured, fastest), measured[-1])
    )


def _request_at(request: PlanRequest, plan: Plan) -> PlanRequest:
    """Return the request at a plan's context length."""
    return replace(
        request, temperature=plan.temperature, context_tokens=plan.context_tokens, batch_size=1, extrapolate=False
    )


def _predictors(
    profile: Profile, request: PlanRequest, temperature: float, rivals: Sequence[Option]
) -> list[OptionsAt]:
    """Return functions that predict the rivals, which are ordered by drafter, one after another."""
    drafters = {each.name: each for each in profile.drafters}
    predictors: list[OptionsAt] = []
    for name in dict.fromkeys(each.drafter.name for each in rivals):
        own = [each for each in rivals if each.drafter.name == name]
        if name == "model":
            predictors += [_model_options(profile, request, temperature, each) for each in own]
        elif drafters[name].trees_at(temperature):
            predictors.append(_tree_options(request, temperature, drafters[name], own))
        else:
            predictors.append(_setting_options(profile, temperature, drafters[name], own))
    return predictors


def _model_options(profile: Profile, request: PlanRequest, temperature: float, rival: Option) -> OptionsAt:
    tokens = token_models(profile, profile.acceptance(rule=rival.rule, temperature=temperature), raw=request.raw)
    return lambda point: _known_options(model_at(point, tokens.at(point.context_tokens)), [rival.tree])


def _tree_options(
    request: PlanRequest, temperature: float, drafter: MeasuredDrafter, rivals: Sequence[Option]
) -> OptionsAt:
    model_at_point = tree_models(drafter, drafter.trees_at(temperature), raw=request.raw)
    return lambda point: _known_options(model_at_point(point), [rival.tree for rival in rivals])


def _setting_options(
    profile: Profile, temperature: float, drafter: MeasuredDrafter, rivals: Sequence[Option]
) -> OptionsAt:
    decodes, most = drafter.decodes_at(temperature), max(rival.verify_tokens for rival in rivals)

    def options(point: OperatingPoint) -> list[Option | None]:
        predicted = setting_options(profile, drafter, decodes, point, max_nodes=most)
        by_values = {each.option.drafter.values: each.option for each in predicted}
        return [by_values.get(rival.drafter.values) for rival in rivals]

    return options


def _known_options(model: StepModel, trees: Sequence[TokenTree]) -> list[Option | None]:
    return [model.predict(tree) if model.knows(tree) else None for tree in trees]
