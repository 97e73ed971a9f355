"""The fastest setting of every drafter that a profile holds, and the fastest of all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.drafter_models import setting_predictions, tree_models
from treeopt.planner.draws import near_best
from treeopt.planner.model import Candidate, StepModel
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import requested_plan, rule_plan
from treeopt.planner.request import OBJECTIVES, PlanRequest
from treeopt.planner.rule_trees import RuleTrees
from treeopt.records.identity import Identity
from treeopt.records.latency import Estimate
from treeopt.records.measured_drafter import CountedDecodes, MeasuredDrafter, MeasuredTrees
from treeopt.records.profile import Profile
from treeopt.records.rules import GIVEN_TOKENS, LOSSY_RULES
from treeopt.trees import Provenance, TokenTree, TreeFile, chain
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.version import TOOL


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DrafterChoice(ArrayRecord):
    """The best that one drafter comes to."""

    setting: DrafterSetting
    tree: TokenTree | None
    """What it fills; None where it brings trees of its own."""
    rule: str
    """By which it is verified."""
    shape: str
    """Tree or setting in words."""
    nodes: int
    """Of the largest pass, root included."""
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    """Tokens per second over those of plain decoding."""
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node of the tree."""
    draws: Float64
    """(draws,): what the speedup may be."""
    fastest_draws: Float64
    """(draws,): what that of the drafter's fastest tree or setting may be."""
    bound: float | None = None
    """By the acceptance table, no tree of the drafter has a larger speedup; None where settings were decoded with."""


def drafter_choices(profile: Profile, request: PlanRequest, *, plan: Plan | None = None) -> tuple[DrafterChoice, ...]:
    """Return the choice of each drafter: the draft model, or plain decoding, first, then those that were measured.

    A drafter is left out where it was not measured at the temperature, where no setting fits the request, for batches, and where
    the request asks for another rule than given tokens are verified by.

    Args:
        profile: what was measured.
        request: what is planned for.
        plan: that of the draft model, where it is there already.

    Raises as `requested_plan` does.
    """
    plan = plan or requested_plan(profile, request)
    found = [_of_the_plan(plan)]
    if plan.model.condition.batch_size == 1 and (request.rule in (None, GIVEN_TOKENS) or plan.temperature == 0):
        for drafter in profile.drafters:
            choice = _choice(drafter, profile, request, plan)
            found += [] if choice is None else [choice]
    return tuple(found)


def best_drafter(choices: Sequence[DrafterChoice], objective: str = "speed") -> DrafterChoice:
    """Return the choice with most of what the objective asks for, in a tie the first."""
    return max(choices, key=OBJECTIVES[objective])


def choice_confidence(choices: Sequence[DrafterChoice]) -> float:
    """Return the probability that the fastest choice is within 1 % of the fastest tree or setting of all drafters."""
    fastest = np.max([each.fastest_draws for each in choices], axis=0)
    return near_best(best_drafter(choices).draws, fastest)


def chosen_drafter(choices: Sequence[DrafterChoice], name: str) -> DrafterChoice:
    """Return the choice of one drafter; raises InfeasibleError where there is none, naming those that there are."""
    for each in choices:
        if each.setting.name == name:
            return each
    raise InfeasibleError(
        f"drafter {name}: nothing was measured of it that suits. Measured here: "
        f"{', '.join(each.setting.name for each in choices)}. Profile with --drafter {name}."
    )


def tree_file(plan: Plan, profile: Profile, *, source: str, choice: DrafterChoice | None = None) -> TreeFile:
    """Return the tree file of a choice, with what was promised of it and where the promise comes from.

    Where a drafter brings trees of its own, a chain as long as its longest draft stands in for them.

    Args:
        plan: that of the draft model.
        profile: what it was planned from.
        source: what the file names as its source.
        choice: of a drafter; by default the plan's own.
    """
    chosen = _of_the_plan(plan) if choice is None else choice
    return TreeFile(
        tree=chain(chosen.setting.longest_draft) if chosen.tree is None else chosen.tree,
        drafter=chosen.setting,
        reach=chosen.reach,
        provenance=Provenance(
            tool=TOOL,
            created=profile.created,
            source=source,
            **asdict(Identity.of(profile.pair, profile.machine)),
            rule=chosen.rule,
            lossy=chosen.rule in LOSSY_RULES or None,
            temperature=plan.temperature,
            tokens_per_step=chosen.tokens_per_step.value,
            step_s=chosen.step_s.value,
            speedup=chosen.speedup.value,
        ),
    )


def _of_the_plan(plan: Plan) -> DrafterChoice:
    return _of_a_tree(DrafterSetting(name="model"), plan, plan.choice)


def _of_a_tree(setting: DrafterSetting, plan: Plan, choice: Candidate) -> DrafterChoice:
    draws = plan.model.draws
    rivals = {each.tree for each in (choice, plan.chain, plan.tree, *plan.budgets)}
    return DrafterChoice(
        setting=setting,
        tree=choice.tree,
        rule=plan.rule,
        shape=choice.shape,
        nodes=choice.tree.nodes,
        tokens_per_step=choice.tokens_per_step,
        step_s=choice.step_s,
        speedup=choice.speedup,
        reach=plan.solution.table.reach(choice.tree),
        draws=draws.speedup(choice.tree),
        fastest_draws=np.max([draws.speedup(tree) for tree in rivals], axis=0),
        bound=plan.fastest.bound if plan.objective == "speed" else None,
    )


def _choice(drafter: MeasuredDrafter, profile: Profile, request: PlanRequest, plan: Plan) -> DrafterChoice | None:
    """Return the best of one drafter, None where nothing of it suits."""
    trees, decodes = drafter.trees_at(plan.temperature), drafter.decodes_at(plan.temperature)
    samplings = [each.sampling for each in trees] + [each.sampling for each in decodes]
    if plan.model.acceptance.sampling not in samplings:
        return None
    if trees:
        return _best_tree(drafter, drafter_plan(trees, profile, request, plan), request)
    return _best_setting(drafter, decodes, profile, request, plan)


def drafter_plan(trees: Sequence[MeasuredTrees], profile: Profile, request: PlanRequest, plan: Plan) -> Plan:
    """Return the plan of a drafter that fills static trees.

    Args:
        trees: what was measured of it at the temperature.
        profile: what was measured of the target's passes.
        request: what is planned for.
        plan: that of the draft model, under the same condition.
    """
    model = tree_models(profile, trees, raw=request.raw).at(plan.model.condition)
    solved = RuleTrees.solve(
        model.drafts, _most_nodes(model.costs.max_nodes, request), _most_depth(model, request), request.level_widths
    )
    return rule_plan(solved, model, request.objective)


def _best_tree(drafter: MeasuredDrafter, found: Plan, request: PlanRequest) -> DrafterChoice | None:
    """Return the best tree that drafts at all, None where none fits."""
    drafting = [each for each in (found.chain, found.tree, *found.budgets) if each.tree.nodes > 1]
    if not drafting:
        return None
    best = max(drafting, key=OBJECTIVES[request.objective])
    return _of_a_tree(drafter.setting(), found, best)


def _most_nodes(measured: int, request: PlanRequest) -> int:
    """Return the most nodes: those asked for, no more than were measured."""
    return measured if request.max_nodes is None else min(request.max_nodes, measured)


def _most_depth(model: StepModel, request: PlanRequest) -> int | None:
    """Return the most levels: those asked for, no more than were measured."""
    deepest = model.acceptance.table.max_depth
    known = [each for each in (deepest, request.max_depth) if each is not None]
    return min(known) if known else None


def _best_setting(
    drafter: MeasuredDrafter, measured: Sequence[CountedDecodes], profile: Profile, request: PlanRequest, plan: Plan
) -> DrafterChoice | None:
    """Return the best of the settings that were decoded with, None where none fits."""
    where = plan.model.condition
    most = _most_nodes(where.max_nodes, request)
    found = setting_predictions(profile, measured, where, max_nodes=most)
    if not found:
        return None
    best = max(found, key=OBJECTIVES[request.objective])
    setting = drafter.setting(best.setting.values)
    return DrafterChoice(
        setting=setting,
        tree=None,
        rule=GIVEN_TOKENS,
        shape=", ".join(f"{each.name} {each.value}" for each in setting.values),
        nodes=best.setting.max_tokens,
        tokens_per_step=best.tokens_per_step,
        step_s=best.step_s,
        speedup=best.speedup,
        draws=best.draws,
        fastest_draws=np.max([each.draws for each in found], axis=0),
    )
