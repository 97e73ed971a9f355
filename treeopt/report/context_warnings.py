"""What to be warned of where a plan is for another context length than acceptance was measured at."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.records.warnings import Caution

if TYPE_CHECKING:
    from treeopt.planner import DrafterChoice, Plan, Schedule
    from treeopt.records.profile import Profile


def context_warnings(
    plan: "Plan",
    profile: "Profile",
    schedule: "Schedule | None" = None,
    drafters: "Sequence[DrafterChoice]" = (),
) -> list[Caution]:
    """Return a warning for what is planned with at context lengths that it was not measured around.

    Drafters are measured behind the prompts alone: theirs counts for the first context length that was timed.
    """
    from treeopt.planner.contexts import elsewhere, outside

    acceptance = profile.acceptance(rule=plan.rule, temperature=plan.temperature)
    scheduled = [] if schedule is None else [each.context_tokens for each in schedule.plans]
    others = [each.setting.name for each in drafters if each.setting.name != "model"]
    first = profile.step_latencies[0].context_tokens
    cautions = [
        elsewhere(profile, acceptance, [plan.context_tokens, *scheduled]),
        *(outside(f"acceptance of {name}", (first,), [plan.context_tokens]) for name in others),
    ]
    return [each for each in cautions if each is not None]
