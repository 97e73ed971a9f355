"""What to be warned of where a plan is for another context length than acceptance was measured at."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.records.warnings import AcceptanceElsewhere, Caution

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

    What does not say where it was measured counts for the first context length that was timed.  Engines say the lengths
    of whole texts, which differ from batch size to batch size: of those nothing is said.
    """
    if profile.engine is not None:
        return []
    first = profile.step_latencies[0].context_tokens
    known = profile.at_contexts(profile.acceptance(rule=plan.rule, temperature=plan.temperature))
    contexts = tuple(each.context_tokens for each in known if each.context_tokens is not None)
    scheduled = () if schedule is None else schedule.plans
    planned = {plan.context_tokens, *(each.context_tokens for each in scheduled)}
    cautions = [_elsewhere("acceptance", contexts or (first,), planned)]
    cautions += [
        _elsewhere(f"acceptance of {each.setting.name}", (first,), {plan.context_tokens})
        for each in drafters
        if each.setting.name != "model"
    ]
    return [each for each in cautions if each is not None]


def _elsewhere(what: str, measured: tuple[int, ...], planned: set[int]) -> Caution | None:
    """Return the warning for planned lengths outside the measured ones, which rise; None where there are none."""
    outside = tuple(sorted(each for each in planned if not measured[0] <= each <= measured[-1]))
    return AcceptanceElsewhere(what, measured, outside) if outside else None
