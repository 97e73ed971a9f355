"""Planning all that a profile holds, while those who wait are told."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.terminal import warn
from treeopt.cli.waiting import patience
from treeopt.errors import InvalidValueError

if TYPE_CHECKING:
    from treeopt.planner import PlanRequest
    from treeopt.planner.categories import CategoryPlans
    from treeopt.planner.planned import Planned
    from treeopt.records.profile import Profile


def profile_for_category(profile: "Profile", category: str | None) -> "Profile":
    """Return the profile of one category of prompts, all of it for None; warns about drafters that are left out.

    Raises click.UsageError for an unknown category, InfeasibleError where too little of it was measured.
    """
    from treeopt.planner.categories import for_category, left_out_drafters, left_out_warning

    if category is None:
        return profile
    try:
        found = for_category(profile, category)
    except InvalidValueError as error:
        raise click.UsageError(f"--{error}") from None
    if missing := left_out_drafters(profile, found):
        warn(left_out_warning(missing, [category]))
    return found


def plan_categories(found: "Planned", request: "PlanRequest", drafter: str | None = None) -> "CategoryPlans | None":
    """Return the best option for each category; None without two that can be planned, or without the objective speed."""
    from treeopt.planner.categories import categories_of, category_plans

    categories = categories_of(found.profile)
    if len(categories) < 2 or request.objective != "speed":
        return None
    for_all = found.plan.choice if found.best is None else found.best.option
    with patience("solving by category", unit="category", total=len(categories)) as tick:
        plans = category_plans(found.profile, request, for_all, drafter=drafter, tick=tick)
    return plans if len(plans.plans) > 1 else None


def profile_for_texts(profile: "Profile", request: "PlanRequest", new_tokens: int, drafter: str | None) -> "Profile":
    """Return the profile of texts of so many new tokens; longer ones than were measured are warned of.

    Raises click.UsageError where drafters are compared of which only whole texts are known, InfeasibleError where
    nothing is known of texts so long.
    """
    from treeopt.planner import for_new_tokens
    from treeopt.planner.new_tokens import check_new_tokens

    if not profile.has_draft_model:
        raise click.UsageError(
            "--new-tokens: expected a profile of a draft model. Of other drafters only whole sequences were measured: leave "
            "it out."
        )
    if drafter not in (None, "model") or (drafter is None and profile.drafters):
        raise click.UsageError(
            "--new-tokens: of other drafters than the draft model only whole texts are known. Plan for it alone: --drafter model."
        )
    if (longer := check_new_tokens(profile, request, new_tokens)) is not None:
        warn(longer)
    return for_new_tokens(profile, new_tokens)


def plan_profile(profile: "Profile", request: "PlanRequest", drafter: str | None = None) -> "Planned":
    """Return all that is planned, of one drafter alone where it is asked for.

    Raises InfeasibleError for what was not measured.
    """
    from treeopt.planner import chosen_drafter, drafter_choices, requested_plan
    from treeopt.planner.drafters import drafters_over_contexts
    from treeopt.planner.planned import Planned
    from treeopt.planner.scheduling import schedule_as_measured, several_conditions
    from treeopt.planner.segments import Segment

    several = bool(profile.drafters) or drafter is not None
    with patience("solving", unit="condition", total=1 + several + several_conditions(profile, request)) as tick:
        plan = requested_plan(profile, request)
        tick()
        drafters = drafter_choices(profile, request, plan=plan) if several else ()
        if several:
            tick()
        if drafter is not None:
            drafters = (chosen_drafter(drafters, drafter),)
        schedule = schedule_as_measured(profile, request, tick)
        over_contexts: tuple[Segment, ...] = ()
        if several and schedule is not None:
            plans = schedule.plans_of_texts(plan.temperature)
            over_contexts = drafters_over_contexts(profile, request, plans, drafter)
    return Planned(
        profile=profile,
        plan=plan,
        request=request,
        schedule=schedule,
        drafters=drafters,
        over_contexts=over_contexts,
    )
