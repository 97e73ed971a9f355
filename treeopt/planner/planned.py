"""A profile, and all that is planned from it."""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.planner.drafters import DrafterChoice, best_drafter
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import Schedule
from treeopt.planner.segments import Segment
from treeopt.records.profile import Profile

DEFAULT = PlanRequest()


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Planned(ShortRepr):
    """A profile, its plan, and what further conditions and drafters that were measured make of it."""

    profile: Profile
    plan: Plan
    request: PlanRequest = DEFAULT
    """What the plan was made with."""
    schedule: Schedule | None = None
    """Where several conditions were measured."""
    drafters: tuple[DrafterChoice, ...] = ()
    """The best of each, where others than the draft model were measured."""
    over_contexts: tuple[Segment, ...] = ()
    """The fastest of them by context length, where several were timed."""

    @property
    def best(self) -> DrafterChoice | None:
        """The best drafter's choice, None where only the draft model was measured."""
        return best_drafter(self.drafters, self.plan.objective) if self.drafters else None
