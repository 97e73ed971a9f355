"""Plans by category of prompt: the profile of one category, and what one option for all categories costs.

    gap of a category = 1 - speedup there of the option planned for all prompts / speedup there of the category's best
    speedup over all categories = 1 / mean over categories of (1 / speedup)

The second counts equally many tokens of each category.  Tokens, steps and passes are those of the category's prompts.
Times are those of the whole profile: a pass takes as long in any text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError, Warning
from treeopt.planner.drafter_costs import setting_options, tree_models
from treeopt.planner.drafters import best_drafter, chosen_drafter, drafter_choices
from treeopt.planner.model import StepModel, requested_model
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import TextSums
from treeopt.records.acceptance_counts import LEAST_COUNT
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.engine import ChainCounts
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import (
    CountedDecodes,
    CountedSetting,
    MeasuredDrafter,
    MeasuredTrees,
    ReplayedTexts,
)
from treeopt.records.profile import Profile
from treeopt.records.root_ranks import RootRanks

LEAST_TEXTS = 2
"""Texts of a category: fewer have no spread, and so no interval."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CategoryPlan(ShortRepr):
    """The best option for one category of prompts."""

    category: str
    prompts: int
    """Measured prompts of the category."""
    best: Option
    for_all: Estimate | None
    """Speedup in this category of the option planned for all prompts; None where its drafter was not measured on it."""

    @property
    def gap(self) -> float | None:
        """Share of the best speedup that the option for all prompts loses."""
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
        return [(each.for_all.value, each.best.speedup.value) for each in self.plans if each.for_all is not None]

    @property
    def for_all_speedup(self) -> float | None:
        """Speedup of the option for all over the categories where it was measured; None without two of them."""
        return _mean_speedup([for_all for for_all, _ in self._compared])

    @property
    def best_speedup(self) -> float | None:
        """Speedup over the same categories with the best option of each."""
        return _mean_speedup([max(pair) for pair in self._compared])

    @property
    def gap(self) -> float | None:
        """Share of `best_speedup` that one option for all loses."""
        if self.for_all_speedup is None or self.best_speedup is None:
            return None
        return _gap(self.for_all_speedup, self.best_speedup)


def categories_of(profile: Profile) -> tuple[str, ...]:
    """Return the categories of a profile's prompts, sorted; empty where no prompt has one."""
    return tuple(sorted({name for names in _text_categories(profile) for name in names if name}))


def for_category(profile: Profile, category: str) -> Profile:
    """Return the profile of the prompts of one category, for plans, schedules, exports and simulations.

    Depths that fewer than 20 positions of the category reached are those of all prompts, so that trees may be as deep.
    Drafters of which fewer than two texts of the category were decoded are left out.

    Raises InvalidValueError for an unknown category, InfeasibleError for a profile without categories and for too few
    texts of the category.
    """
    known = categories_of(profile)
    if not known:
        raise InfeasibleError(
            "category: expected a profile of prompts that have a category. Got one without: give each prompt of a .jsonl "
            "file a category, and profile with --prompts.",
            field="category",
        )
    if category not in known:
        raise InvalidValueError(
            f"category: expected one of {', '.join(known)}. Got {category!r:.70}.", field="category"
        )
    acceptances = tuple(_acceptance(each, category) for each in profile.acceptances)
    drafters = [_drafter(each, category) for each in profile.drafters]
    found = tuple(each for each in drafters if each is not None)
    if not acceptances and not found:
        raise _too_few(category, f"{LEAST_TEXTS} decoded texts or more", "fewer")
    return replace(profile, acceptances=acceptances, drafters=found)


def left_out_drafters(profile: Profile, restricted: Profile) -> tuple[str, ...]:
    """Return the names of the drafters that `for_category` left out of a profile when it returned `restricted`."""
    kept = [each.name for each in restricted.drafters]
    return tuple(each.name for each in profile.drafters if each.name not in kept)


def left_out_warning(drafters: Sequence[str], categories: Sequence[str]) -> Warning:
    """Return the warning that some drafters are not compared in some categories."""
    return Warning(
        f"fewer than {LEAST_TEXTS} texts of {', '.join(categories)} were decoded with {', '.join(drafters)}, left out there.",
        "Profile with more prompts, or a longer --time-budget.",
    )


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
    failed: list[str] = []
    missing: dict[tuple[str, ...], list[str]] = {}
    for category in categories_of(profile):
        tick()
        try:
            restricted = for_category(profile, category)
            plans.append(_category_plan(restricted, request, category, for_all, drafter))
        except InfeasibleError:
            failed.append(category)
            continue
        if names := left_out_drafters(profile, restricted):
            missing.setdefault(names, []).append(category)
    warnings = [left_out_warning(names, categories) for names, categories in missing.items()]
    if failed:
        found = f"no plan for {', '.join(failed)}: expected {LEAST_TEXTS} texts or more, of {LEAST_COUNT:g} positions together."
        warnings.append(Warning(found, "Profile with more prompts of each category, or a longer --time-budget."))
    return CategoryPlans(for_all=for_all, plans=tuple(plans), warnings=tuple(warnings))


def _category_plan(
    profile: Profile, request: PlanRequest, category: str, for_all: Option, drafter: str | None
) -> CategoryPlan:
    plan = requested_plan(profile, request)
    choices = drafter_choices(profile, request, plan=plan)
    best = best_drafter(choices, request.objective) if drafter is None else chosen_drafter(choices, drafter)
    return CategoryPlan(
        category=category,
        prompts=max(names.count(category) for names in _text_categories(profile)),
        best=best.option,
        for_all=_speedup(for_all, profile, request, plan),
    )


def _speedup(option: Option, profile: Profile, request: PlanRequest, plan: Plan) -> Estimate | None:
    """Return the speedup of an option by another profile; None where its drafter or setting was not measured there."""
    if option.drafter.name == "model":
        return _own_model(option, profile, request, plan).predict(option.tree).speedup
    drafter = next((each for each in profile.drafters if each.name == option.drafter.name), None)
    if drafter is None:
        return None
    point = plan.model.point
    if trees := drafter.trees_at(plan.temperature):
        return tree_models(drafter, trees, raw=request.raw)(point).predict(option.tree).speedup
    decodes = drafter.decodes_at(plan.temperature)
    settings = setting_options(profile, drafter, decodes, point, max_nodes=point.max_nodes)
    return next((each.option.speedup for each in settings if each.option.drafter == option.drafter), None)


def _own_model(option: Option, profile: Profile, request: PlanRequest, plan: Plan) -> StepModel:
    """Return the model of the draft model's steps under the rule of an option."""
    request = replace(request, rule=option.rule, temperature=plan.temperature)
    beyond = plan.solution.max_nodes if request.extrapolate else 0
    return requested_model(profile, request, max_nodes=beyond)


def _gap(speedup: float, best: float) -> float:
    return max(0.0, 1 - speedup / best)


def _mean_speedup(speedups: Sequence[float]) -> float | None:
    """Return the speedup over equally many tokens of each category."""
    return float(1 / np.mean(1 / np.array(speedups))) if len(speedups) > 1 else None


def _text_categories(profile: Profile) -> list[tuple[str, ...]]:
    """Return the categories of the texts of each part of a profile."""
    trees = [each.acceptance for drafter in profile.drafters for each in drafter.trees]
    decodes = [each for drafter in profile.drafters for each in drafter.decodes]
    replayed = [each.replayed for decoded in decodes for each in decoded.settings if each.replayed is not None]
    acceptances = [each.categories for each in (*profile.acceptances, *trees)]
    return acceptances + [each.categories for each in decodes] + [each.categories for each in replayed]


def _places(categories: Sequence[str], category: str) -> list[int]:
    return [place for place, name in enumerate(categories) if name == category]


def _too_few(category: str, expected: str, got: str) -> InfeasibleError:
    return InfeasibleError(
        f"category {category}: expected {expected}. Got {got}: profile with more prompts of it, or a longer --time-budget."
    )


def _acceptance(acceptance: MeasuredAcceptance, category: str) -> MeasuredAcceptance:
    """Return the acceptance on the texts of one category."""
    texts, places = acceptance.texts, _places(acceptance.categories, category)
    if texts is None or not acceptance.categories:
        raise InfeasibleError(
            f"category: expected an acceptance of texts with categories. Got {acceptance.rule} at temperature "
            f"{acceptance.temperature:g} without: profile again with --prompts.",
            field="category",
        )
    sums, ranks = _sums(texts, places, category), acceptance.accepted_ranks
    return replace(
        acceptance,
        prompts=int(np.count_nonzero(sums.reached[:, 0])),
        positions=int(sums.reached[:, 0].sum()),
        table=sums.table(),
        texts=sums,
        accepted_ranks=None if ranks is None else AcceptedRanks([ranks.ranks[place] for place in places]),
        categories=(category,) * len(places),
        chains=tuple(_chain_counts(each, places) for each in acceptance.chains),
    )


def _sums(texts: TextSums, places: Sequence[int], category: str) -> TextSums:
    """Return the sums of some texts; depths that they hardly reached have the acceptance of all texts."""
    reached, accepted = texts.reached[places], texts.accepted[places]
    positions = reached.sum(axis=0)
    if np.count_nonzero(reached[:, :1]) < LEAST_TEXTS or positions[0] < LEAST_COUNT:
        raise _too_few(
            category,
            f"{LEAST_TEXTS} texts or more, of {LEAST_COUNT:g} positions together",
            f"{len(places)} of {positions[0]:g} positions",
        )
    known = int(np.cumprod(positions >= LEAST_COUNT).sum())
    counts = np.broadcast_to(texts.reached.sum(axis=0)[known:] / len(places), reached[:, known:].shape)
    return TextSums(
        np.concatenate([reached[:, :known], counts], axis=1),
        np.concatenate([accepted[:, :known], counts[:, :, None] * texts.p[known:]], axis=1),
    )


def _chain_counts(counts: ChainCounts, places: Sequence[int]) -> ChainCounts:
    return replace(
        counts,
        steps=tuple(counts.steps[place] for place in places),
        tokens=tuple(counts.tokens[place] for place in places),
    )


def _drafter(drafter: MeasuredDrafter, category: str) -> MeasuredDrafter | None:
    """Return what was measured of a drafter on one category; None where there is too little at some condition."""
    try:
        return replace(
            drafter,
            trees=tuple(_trees(each, category) for each in drafter.trees),
            decodes=tuple(_decodes(each, category) for each in drafter.decodes),
        )
    except InfeasibleError:
        return None


def _trees(trees: MeasuredTrees, category: str) -> MeasuredTrees:
    """Return static trees with the acceptance of one category; the times of their steps stay those of all texts."""
    ranks, places = trees.ranks, _places(trees.acceptance.categories, category)
    return replace(
        trees,
        acceptance=_acceptance(trees.acceptance, category),
        ranks=None if ranks is None else RootRanks([ranks.ranks[place] for place in places]),
    )


def _decodes(decodes: CountedDecodes, category: str) -> CountedDecodes:
    """Return the settings with tokens, steps and passes of one category; seconds beside the passes are those of all texts."""
    return replace(
        decodes,
        settings=tuple(
            replace(each, replayed=_steps(each, decodes.categories, category), passes_by_text=())
            for each in decodes.settings
        ),
        categories=(),
    )


def _steps(setting: CountedSetting, categories: Sequence[str], category: str) -> ReplayedTexts:
    """Return the steps along the texts of a category: replayed ones where there are any, else decoded ones."""
    counted = setting if setting.replayed is None else setting.replayed
    places = _places(categories if setting.replayed is None else setting.replayed.categories, category)
    if len(places) < LEAST_TEXTS:
        raise _too_few(category, f"{LEAST_TEXTS} texts or more decoded with each drafter", str(len(places)))
    rows = np.array(counted.passes_by_text)[places]
    sizes = np.flatnonzero(rows.sum(axis=0))
    tokens, steps = setting.steps.tokens, setting.steps.steps
    return ReplayedTexts(
        tokens=tuple(tokens[place] for place in places),
        steps=tuple(steps[place] for place in places),
        pass_tokens=tuple(counted.pass_tokens[size] for size in sizes),
        passes=tuple(rows[:, sizes].sum(axis=0).tolist()),
        passes_by_text=tuple(map(tuple, rows[:, sizes].tolist())),
        categories=(category,) * len(places),
    )
