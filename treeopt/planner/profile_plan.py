"""Everything that is planned from a profile."""

from dataclasses import dataclass, field

from treeopt.array_record import ShortRepr
from treeopt.planner.drafters import DrafterChoice, best_drafter
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import Schedule
from treeopt.planner.segments import Segment
from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ProfilePlan(ShortRepr):
    """A profile, its plan, and what follows from further operating points and drafters that were measured."""

    profile: Profile
    plan: Plan
    request: PlanRequest = field(default_factory=PlanRequest)
    """That the plan was made for."""
    schedule: Schedule | None = None
    """If several operating points were measured."""
    drafters: tuple[DrafterChoice, ...] = ()
    """The choice of each, if others than the draft model were measured."""
    over_contexts: tuple[Segment, ...] = ()
    """The fastest option of all drafters by context length, if several were timed."""

    @property
    def best(self) -> DrafterChoice | None:
        """The best drafter's choice, None if only the draft model was measured."""
        return best_drafter(self.drafters, self.plan.objective) if self.drafters else None

    @property
    def option(self) -> Option:
        """The best option of all drafters."""
        return self.plan.choice if self.best is None else self.best.option
