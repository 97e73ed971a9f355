"""Which verification rules are planned, and what each comes to at its best."""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError
from treeopt.planner.model import Candidate
from treeopt.planner.request import PlanRequest
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES, check_rule


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleChoice(ShortRepr):
    """The best way to decode under one verification rule."""

    rule: str
    lossy: bool
    """Whether the text no longer follows the target's distribution."""
    choice: Candidate


def planned_acceptances(profile: Profile, request: PlanRequest) -> tuple[MeasuredAcceptance, ...]:
    """Return the acceptances that may be planned with, in the order measured, one per rule and temperature.

    Raises InvalidValueError for a lossy rule that is not allowed, InfeasibleError where nothing is left to plan.
    """
    rule, temperature, lossy = request.rule, request.temperature, request.lossy
    if rule in LOSSY_RULES:
        check_rule(rule, lossy=lossy)
    profile.acceptance(rule=rule, temperature=temperature)  # refuse now what was not measured
    first: dict[tuple[str, float], MeasuredAcceptance] = {}
    for each in profile.acceptances_of(rule=rule, temperature=temperature):
        first.setdefault((each.rule, each.temperature), each)
    allowed = tuple(each for each in first.values() if lossy or each.rule not in LOSSY_RULES)
    if not allowed:
        refused = ", ".join(dict.fromkeys(each.rule for each in first.values()))
        at = "" if temperature is None else f" at temperature {temperature:g}"
        raise InfeasibleError(
            f"rule: only lossy ones were measured{at}, which change the text's distribution: {refused}. "
            "Profile a lossless one, or allow these with lossy=True, or --lossy on the command line.",
            field="rule",
        )
    return allowed
