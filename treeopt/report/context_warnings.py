"""What to be warned of where a plan is for another context length than acceptance was measured at."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.errors import Warning

if TYPE_CHECKING:
    from treeopt.planner import DrafterChoice, Plan, Schedule
    from treeopt.records.profile import Profile


def context_warnings(
    plan: "Plan",
    profile: "Profile",
    schedule: "Schedule | None" = None,
    drafters: "Sequence[DrafterChoice]" = (),
) -> list[Warning]:
    """Return a warning for what is planned with at context lengths that it was not measured around.

    What was measured behind the prompts alone counts for the first context length that was timed.
    """
    from treeopt.planner.drafter_costs import measured_contexts
    from treeopt.planner.tokens import outside_contexts, warn_outside_contexts

    acceptance = profile.acceptance(rule=plan.rule, temperature=plan.temperature)
    scheduled = [] if schedule is None else [each.context_tokens for each in schedule.plans]
    planned = [plan.context_tokens, *scheduled]
    chosen = {each.option.drafter.name for each in drafters}
    warnings = [
        warn_outside_contexts(profile, acceptance, planned),
        *(
            outside_contexts(f"acceptance of {each.name}", measured_contexts(profile, each, plan.temperature), planned)
            for each in profile.drafters
            if each.name in chosen
        ),
    ]
    return [each for each in warnings if each is not None]
