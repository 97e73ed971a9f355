"""Everything that is planned from a profile, with the fastest drafter at every context length."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from treeopt.array_record import ShortRepr
from treeopt.planner.drafter_costs import predict_settings, tree_model
from treeopt.planner.drafters import DrafterChoice, best_drafter, drafter_choices
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import Schedule
from treeopt.planner.segments import Segment, find_winners
from treeopt.planner.tokens import token_models
from treeopt.records.operating_point import OperatingPoint
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


def drafters_over_contexts(
    profile: Profile, request: PlanRequest, plans: Sequence[Plan], name: str | None = None
) -> tuple[Segment, ...]:
    """Return the fastest option at every context length, among the best of each drafter at the measured ones.

    Args:
        profile: what was measured.
        request: what is planned for; its context length does not count.
        plans: of the draft model for single sequences at one temperature, by increasing context length.
        name: only this drafter.

    Context lengths at which none of them was measured are left out.  Returns nothing if a single one was timed.
    """
    if len(plans) < 2:
        return ()
    best: dict[object, Option] = {}
    for plan in plans:
        point_request = replace(
            request, temperature=plan.temperature, context_tokens=plan.context_tokens, batch_size=1, extrapolate=False
        )
        for choice in drafter_choices(profile, point_request, plan=plan):
            option = choice.option
            if name in (None, option.drafter.name):
                best[option.drafter, option.rule, option.tree] = option
    order = ["model", *(drafter.name for drafter in profile.drafters)]
    rivals = sorted(best.values(), key=lambda option: order.index(option.drafter.name))
    sampling, temperature = plans[0].model.acceptance.sampling, plans[0].temperature
    predictions: dict[tuple[int, int], Option] = {}

    def fastest(context: int) -> int | None:
        point = profile.at(context, 1, sampling)
        options = [predict_option(rival, profile, request, point) for rival in rivals]
        measured = {index: option for index, option in enumerate(options) if option is not None}
        predictions.update({(context, index): option for index, option in measured.items()})
        return max(measured, key=lambda index: measured[index].speedup.value, default=None)

    contexts = [plan.context_tokens for plan in plans]
    return tuple(
        Segment(
            temperature=temperature,
            batch_sizes=(1, 1),
            context_tokens=ends,
            option=predictions[ends[0], index],
        )
        for ends, index in find_winners(contexts, fastest)
        if index is not None
    )


def predict_option(
    option: Option, profile: Profile, request: PlanRequest, point: OperatingPoint, *, max_nodes: int = 0
) -> Option | None:
    """Return an option, which may have been planned from another profile, with its prediction at an operating point.

    Args:
        option: a drafter with a tree or a setting.
        profile: what was measured.
        request: whether acceptance is smoothed.
        point: one of the profile's.
        max_nodes: up to how many nodes the draft model's curves are extrapolated, if larger than what was measured.

    Returns None beyond what was measured.
    """
    temperature = point.sampling.temperature
    model: StepModel | None
    if option.drafter.name == "model":
        acceptance = profile.acceptance(rule=option.rule, temperature=temperature)
        tokens = token_models(profile, acceptance, raw=request.raw).at(point.context_tokens)
        model = model_at(point, tokens, max_nodes=max_nodes)
    else:
        drafter = next((drafter for drafter in profile.drafters if drafter.label == option.drafter.label), None)
        if drafter is None:
            return None
        if decodes := drafter.decodes_at(temperature):
            settings = predict_settings(profile, drafter, decodes, point, max_nodes=option.verify_tokens)
            return next((setting for setting, _ in settings if setting.drafter == option.drafter), None)
        model = tree_model(drafter, drafter.trees_at(temperature), point, raw=request.raw)
    return None if model is None or not model.covers(option.tree) else model.predict(option.tree)
