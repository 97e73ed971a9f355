"""How certain a profile makes the choice of its plan, and which measurements would make it more certain."""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.planner.model import Confidence
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import NEAR
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES

CLOSE_RIVAL = 0.02
"""Fraction of draws in which a close rival is nearly the fastest."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Certainty(ShortRepr):
    """The confidence in a plan at one operating point, and the passes of its best trees."""

    confidence: Confidence
    verify_tokens: frozenset[int]
    """Tokens of the verification passes of the choice and its close rivals."""
    draft_widths: frozenset[int]
    """Nodes of their draft levels."""


def certainty(profile: Profile, *, temperature: float, context_tokens: int, batch_size: int) -> Certainty:
    """Return the certainty of the plan at one measured operating point; raises as `plan` does."""
    request = PlanRequest(
        temperature=temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        lossy=any(acceptance.rule in LOSSY_RULES for acceptance in profile.acceptances),
    )
    plan = requested_plan(profile, request)
    options = (plan.plain, plan.chain, plan.tree, *plan.budgets)
    speedups = plan.model.draw_speedups([option.tree for option in options])
    near_best = (speedups >= NEAR * speedups.max(axis=1, keepdims=True)).mean(axis=0) >= CLOSE_RIVAL
    close = [plan.choice, *(option for option, near in zip(options, near_best.tolist(), strict=True) if near)]
    return Certainty(
        confidence=plan.confidence,
        verify_tokens=frozenset(option.verify_tokens for option in close),
        draft_widths=frozenset(width for option in close for width in option.tree.draft_widths.tolist()),
    )
