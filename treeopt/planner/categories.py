"""Plans by category of prompt: the best option for each category, and the cost of one option for all.

    gap of a category = 1 - speedup there of the option planned for all prompts / speedup there of the category's best
    speedup over all categories = 1 / mean over categories of (1 / speedup)

The second counts equally many tokens of each category.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, Warning
from treeopt.planner.drafters import best_drafter, chosen_drafter, drafter_choices, predict_option
from treeopt.planner.options import Option
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.subsets import (
    categories_of,
    for_category,
    left_out_drafters,
    left_out_warning,
    sequence_categories,
)
from treeopt.records.latency import Estimate
from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CategoryPlan(ShortRepr):
    """The best option for one category of prompts."""

    category: str
    prompts: int
    """Measured prompts of the category."""
    best: Option
    for_all: Estimate | None
    """Speedup in this category of the option planned for all prompts; None if its drafter was not measured on it."""

    @property
    def gap(self) -> float | None:
        """Fraction of the best speedup that the option for all prompts loses."""
        return None if self.for_all is None else _gap(self.for_all.value, self.best.speedup.value)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CategoryPlans(ShortRepr):
    """The best option for each category, and one option for all."""

    for_all: Option
    """Planned from all prompts together."""
    plans: tuple[CategoryPlan, ...]
    """Sorted by category."""
    warnings: tuple[Warning, ...] = ()
    """About categories and drafters that are left out."""

    @property
    def _compared(self) -> list[tuple[float, float]]:
        """Speedups of the option for all and of the best, by category."""
        return [(plan.for_all.value, plan.best.speedup.value) for plan in self.plans if plan.for_all is not None]

    @property
    def for_all_speedup(self) -> float | None:
        """Speedup of the option for all over the categories on which it was measured; None without two of them."""
        return _mean_speedup([for_all for for_all, _ in self._compared])

    @property
    def best_speedup(self) -> float | None:
        """Speedup over the same categories with the best option of each."""
        return _mean_speedup([max(pair) for pair in self._compared])

    @property
    def gap(self) -> float | None:
        """Fraction of `best_speedup` that one option for all loses."""
        if self.for_all_speedup is None or self.best_speedup is None:
            return None
        return _gap(self.for_all_speedup, self.best_speedup)


def category_plans(
    profile: Profile,
    request: PlanRequest,
    for_all: Option,
    *,
    drafter: str | None = None,
    tick: Callable[[], object] = lambda: None,
) -> CategoryPlans:
    """Return the best option for each category of a profile, compared with the option for all prompts.

    Args:
        profile: of prompts with categories.
        request: what is planned for.
        for_all: the best option from the whole profile.
        drafter: the only drafter to plan for; by default all are compared.
        tick: called before each category.
    """
    plans: list[CategoryPlan] = []
    left_out: dict[str, list[str]] = {}
    for category in categories_of(profile):
        tick()
        try:
            restricted = for_category(profile, category)
            plans.append(_category_plan(restricted, request, category, for_all, drafter))
        except InfeasibleError:
            left_out.setdefault("all drafters", []).append(category)
            continue
        for name in left_out_drafters(profile, restricted):
            left_out.setdefault(name, []).append(category)
    warnings = (left_out_warning(left_out),) if left_out else ()
    return CategoryPlans(for_all=for_all, plans=tuple(plans), warnings=warnings)


def _category_plan(
    profile: Profile, request: PlanRequest, category: str, for_all: Option, drafter: str | None
) -> CategoryPlan:
    """Return the plan from the profile of one category."""
    plan = requested_plan(profile, request)
    choices = drafter_choices(profile, request, plan=plan)
    best = (
        best_drafter(choices, request.objective)
        if drafter is None
        else chosen_drafter(choices, drafter, request, profile)
    )
    max_nodes = plan.solution.max_nodes if request.extrapolate else 0
    prediction = predict_option(for_all, profile, request, plan.model.point, max_nodes=max_nodes)
    return CategoryPlan(
        category=category,
        prompts=max(names.count(category) for names in sequence_categories(profile)),
        best=best.option,
        for_all=None if prediction is None else prediction.speedup,
    )


def _gap(speedup: float, best: float) -> float:
    return max(0.0, 1 - speedup / best)


def _mean_speedup(speedups: Sequence[float]) -> float | None:
    """Return the speedup over equally many tokens of each category."""
    return float(1 / np.mean(1 / np.array(speedups))) if len(speedups) > 1 else None
