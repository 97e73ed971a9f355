"""How certain a profile makes the choice of its plan, and what to measure next to make it more so."""

from collections.abc import Mapping
from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.planner.model import known_exactly
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import NEAR
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES

LEAST_SHARE = 0.02
"""Of the draws in which a tree is as good as the best, if it is to count as a close rival."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Certainty(ShortRepr):
    """The confidence of a plan under one condition, and the sizes that decide between its best trees."""

    probability: float
    """Chance that the choice is within 1 % of the fastest."""
    gains: Mapping[str, float]
    """By how much it would rise if `acceptance`, `verify`, `draft` or `overhead` was known exactly."""
    verify_tokens: frozenset[int]
    """Tokens of the verification passes of the choice and of its close rivals."""
    draft_widths: frozenset[int]
    """Nodes of their draft levels."""

    @property
    def weakest(self) -> str:
        """What is least certain."""
        return max(self.gains, key=lambda part: self.gains[part])


def certainty(profile: Profile, *, temperature: float, context_tokens: int, batch_size: int) -> Certainty:
    """Return how certain the plan for one measured condition is; raises as `plan` does."""
    request = PlanRequest(
        temperature=temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        lossy=any(each.rule in LOSSY_RULES for each in profile.acceptances),
    )
    plan = requested_plan(profile, request)
    candidates = (plan.plain, plan.chain, plan.tree, *plan.budgets)
    speedups = plan.model.draw_speedups([each.tree for each in candidates])
    best = (speedups >= NEAR * speedups.max(axis=1, keepdims=True)).mean(axis=0) >= LEAST_SHARE
    close = [plan.choice, *(each for each, good in zip(candidates, best.tolist(), strict=True) if good)]
    trees = [plan.choice.tree, *(each.tree for each in candidates if each is not plan.choice)]
    probability, without = known_exactly(plan.model, trees)
    return Certainty(
        probability=plan.confidence.probability,
        gains={part: each - probability for part, each in without.items()},
        verify_tokens=frozenset(each.verify_tokens for each in close),
        draft_widths=frozenset(width for each in close for width in each.tree.draft_widths.tolist()),
    )
