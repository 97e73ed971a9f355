"""Planning from a profile, with progress and warnings on standard error."""

import click

from treeopt.cli.terminal import progress, warn
from treeopt.errors import Warning
from treeopt.planner import PlanRequest, categories_of, chosen_drafter, drafter_choices, requested_plan
from treeopt.planner.categories import CategoryPlans, category_plans
from treeopt.planner.drafters import drafters_over_contexts
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.planner.scheduling import count_scheduled_points, schedule_if_measured
from treeopt.planner.segments import Segment
from treeopt.planner.subsets import check_new_tokens, for_sequences, left_out_drafters, left_out_warning
from treeopt.records.profile import Profile


def select_category(profile: Profile, category: str | None, new_tokens: int | None = None) -> Profile:
    """Return the profile of the first `new_tokens` tokens of the sequences of one category; None stands for all.

    Warns of drafters that are left out. Raises InvalidValueError for an unknown category, InfeasibleError for one with too
    few measurements.
    """
    selected = for_sequences(profile, category=category, new_tokens=new_tokens)
    if category is not None and (missing := left_out_drafters(profile, selected)):
        warn(left_out_warning({drafter: [category] for drafter in missing}))
    measured = {name for acceptance in selected.acceptances for name in acceptance.categories}
    if category is not None and measured - {category}:
        problem = (
            f"the draft model was measured on too few prompts of {category}, and keeps its acceptance of all prompts."
        )
        warn(Warning(problem, "Profile with more prompts of each category."))
    return selected


def select_sequences(
    profile: Profile, request: PlanRequest, *, category: str | None, new_tokens: int | None, drafter: str | None
) -> Profile:
    """Select a category and a length as `select_category` does, after checks that the length was measured.

    Raises click.UsageError for a length if drafters other than the draft model are compared, InfeasibleError for a length
    without measurements, and as `select_category` does.
    """
    if new_tokens is None:
        return select_category(profile, category)
    if not profile.has_draft_model:
        raise click.UsageError(
            "--new-tokens: expected a profile of a draft model. Of other drafters only whole sequences were measured: leave "
            "it out."
        )
    if drafter not in (None, "model") or (drafter is None and profile.drafters):
        raise click.UsageError(
            "--new-tokens: of other drafters than the draft model only whole sequences were measured. Plan for the draft "
            "model alone: --drafter model."
        )
    if (warning := check_new_tokens(profile, request, new_tokens)) is not None:
        warn(warning)
    return select_category(profile, category, new_tokens)


def plan_profile(profile: Profile, request: PlanRequest, drafter: str | None = None) -> ProfilePlan:
    """Return the plan of all drafters, or of one, and the schedule if several operating points were measured.

    Raises InfeasibleError for a request that was not measured.
    """
    several = bool(profile.drafters) or drafter is not None
    with progress("solving", unit="condition", total=1 + several + count_scheduled_points(profile, request)) as tick:
        plan = requested_plan(profile, request)
        tick()
        drafters = drafter_choices(profile, request, plan=plan) if several else ()
        if several:
            tick()
        if drafter is not None:
            drafters = (chosen_drafter(drafters, drafter, request, profile),)
        schedule = schedule_if_measured(profile, request, tick)
        over_contexts: tuple[Segment, ...] = ()
        if several and schedule is not None:
            plans = schedule.single_sequence_plans(plan.temperature)
            over_contexts = drafters_over_contexts(profile, request, plans, drafter)
    return ProfilePlan(
        profile=profile, plan=plan, request=request, schedule=schedule, drafters=drafters, over_contexts=over_contexts
    )


def plan_categories(profile_plan: ProfilePlan, drafter: str | None = None) -> CategoryPlans | None:
    """Return the best option for each category; None for fewer than two categories, and for the objective tokens."""
    request, categories = profile_plan.request, categories_of(profile_plan.profile)
    if len(categories) < 2 or request.objective != "speed":
        return None
    with progress("solving by category", unit="category", total=len(categories)) as tick:
        plans = category_plans(profile_plan.profile, request, profile_plan.option, drafter=drafter, tick=tick)
    return plans if len(plans.plans) > 1 else None
