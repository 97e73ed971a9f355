"""Profile to plan: the rule and the tree, chain or plain decoding with the most tokens per second, found together."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from treeopt.arguments import instance
from treeopt.errors import InfeasibleError
from treeopt.planner.fastest import speeds
from treeopt.planner.memory import Memory, memory_of
from treeopt.planner.model import StepModel, confidence, model_at
from treeopt.planner.options import OBJECTIVES
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.rule_trees import RuleTrees
from treeopt.planner.tokens import token_models
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.trees import TokenTree, chain


def plan(
    profile: Profile,
    max_nodes: int | None = None,
    *,
    max_depth: int | None = None,
    level_widths: int | Sequence[int] | None = None,
    objective: str = "speed",
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    raw: bool = False,
    extrapolate: bool = False,
    lossy: bool = False,
    memory_bytes: int | None = None,
) -> Plan:
    """Return the best rule with its best tree, chain and plain decoding, over all budgets up to `max_nodes`.

    Rules are compared through the best way to decode under each; in a tie the one measured first is taken.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included; by default that of the largest pass that was timed there.
        max_depth: most levels below the root; by default all that the acceptance was measured for.
        level_widths: most nodes at each depth, as for `treeopt.solve`.
        objective: `speed`, or `tokens` to ignore what a step costs.
        rule: verification rule; by default the best of all that were measured at the temperature.
        temperature: at which acceptance was measured; by default the first of the rule, or of all.
        context_tokens: tokens in the cache.
        batch_size: sequences verified together.
        raw: take the acceptance as measured.
        extrapolate: go on beyond what was measured.
        lossy: allow rules that change the text's distribution.
        memory_bytes: of the weights and the KV caches together; larger trees are not planned.

    Raises InvalidValueError for a budget below 1, an unknown objective or a lossy rule that is not allowed,
    InfeasibleError for conditions and sizes beyond what was measured.
    """
    request = PlanRequest(
        rule=rule,
        temperature=temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        extrapolate=extrapolate,
        max_nodes=max_nodes,
        max_depth=max_depth,
        level_widths=level_widths,
        objective=objective,
        raw=raw,
        lossy=lossy,
        memory_bytes=memory_bytes,
    )
    return requested_plan(profile, request)


def requested_plan(profile: Profile, request: PlanRequest) -> Plan:
    """Return the plan that is asked for; raises as `plan` does."""
    check_profile(profile)
    if request.temperature is None:
        request = replace(request, temperature=profile.acceptance(rule=request.rule).temperature)
    acceptances = planned_acceptances(profile, request)
    point = _point(profile, request, acceptances[0])
    most = point.max_nodes if request.max_nodes is None else request.max_nodes
    if not profile.has_draft_model:
        most = 1  # plain decoding alone: what other drafters fill is planned by `drafter_choices`
    memory = None if request.memory_bytes is None else memory_of(profile, request.memory_bytes)
    if memory is not None:
        most = min(most, _fitting_nodes(memory, point))
    beyond = most if request.extrapolate else 0
    tokens = [token_models(profile, each, raw=request.raw).at(point.context_tokens) for each in acceptances]
    models = [model_at(point, each, max_nodes=beyond) for each in tokens]
    for model in models:
        model.costs.step_s(np.array([most]), np.zeros((1, 0), np.int64))  # refuse now what was not measured
    solved = [RuleTrees.solve(each.tokens, most, most_levels(each, request), request.level_widths) for each in models]
    return replace(plan_rules(solved, models, request.objective), memory=memory)


def most_levels(model: StepModel, request: PlanRequest) -> int | None:
    """Return the most levels of a tree, those asked for and that one pass drafts; None where nothing limits them."""
    block = model.costs.max_levels if model.costs.per_block else None
    return min((each for each in (request.max_depth, block) if each is not None), default=None)


def _fitting_nodes(memory: Memory, point: OperatingPoint) -> int:
    """Return the most nodes that fit at an operating point; raises InfeasibleError if not even plain decoding does."""
    nodes = memory.max_nodes(point.context_tokens, point.batch_size)
    if nodes < 1:
        raise InfeasibleError(
            f"memory: {memory.total_bytes} bytes hold the weights and {memory.sequences(point.context_tokens)} sequences of "
            f"{point.context_tokens} tokens. Got a batch of {point.batch_size}: allow more, or a smaller batch.",
            field="memory",
        )
    return nodes


def check_profile(profile: Profile) -> None:
    """Raise InvalidValueError for what is no profile."""
    instance("profile", profile, Profile, "read one with treeopt.Profile.load(path)")


def planned_acceptances(profile: Profile, request: PlanRequest) -> tuple[MeasuredAcceptance, ...]:
    """Return the acceptances that may be planned with, in the order measured, one per rule and temperature.

    Raises InvalidValueError for a lossy rule that is not allowed, InfeasibleError if nothing is left to plan.
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


def plan_rules(solved: Sequence[RuleTrees], models: Sequence[StepModel], objective: str = "speed") -> Plan:
    """Return the plan of the rule whose choice is best at an operating point, with the best option of each rule.

    Args:
        solved: the trees of each rule.
        models: of steps under each rule, at one operating point.
        objective: as for `plan`.
    """
    plans = [rule_plan(trees, model, objective) for trees, model in zip(solved, models, strict=True)]
    best = max(plans, key=lambda each: OBJECTIVES[objective](each.choice))
    return replace(best, rules=tuple(each.choice for each in plans))


def rule_plan(trees: RuleTrees, model: StepModel, objective: str) -> Plan:
    """Return the plan of one acceptance's trees under a condition and an objective."""
    solution, speedups = trees.solution, speeds(trees.solution, model.costs)
    fastest = trees.fastest(model.costs, speedups)
    never_accepted = [chain(1)] if min(solution.max_nodes - 1, solution.max_depth) else []  # of few positions, perhaps
    rivals = _ranked(model, list(dict.fromkeys([fastest.tree, *trees.rivals(speedups), *never_accepted])))
    if objective == "speed":
        best, longest = rivals[0], _ranked(model, trees.chains)[0]
    else:
        best = solution.tree(solution.max_nodes, solution.max_depth)
        longest = max(trees.chains, key=model.tokens_per_step)
    plain, single, whole, *budgets = model.predict_all([chain(0), longest, best, *trees.row(speedups)])
    return Plan(
        plain=plain,
        chain=single,
        tree=whole,
        budgets=tuple(budgets),
        objective=objective,
        fastest=fastest,
        confidence=confidence(model, rivals),
        model=model,
        solution=solution,
    )


def fastest_trees(trees: RuleTrees, model: StepModel) -> tuple[TokenTree, TokenTree]:
    """Return the fastest tree and the fastest chain by one acceptance under a condition, as `rule_plan` plans them."""
    speedups = speeds(trees.solution, model.costs)
    found = [trees.fastest(model.costs, speedups).tree, *trees.rivals(speedups)]
    return _ranked(model, found)[0], _ranked(model, trees.chains)[0]


def _ranked(model: StepModel, trees: Sequence[TokenTree]) -> list[TokenTree]:
    """Return trees by their speed, the fastest first, in a tie as they came.

    Without accepted ranks that is the order of the acceptance table; with them what it leaves out may change it.
    """
    return [trees[place] for place in np.argsort(-model.speedups(trees), kind="stable")]


def largest_pass(
    profile: Profile,
    *,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    extrapolate: bool = False,
) -> int:
    """Return the nodes of the largest verification pass that was timed where a plan is to hold; arguments as for `plan`."""
    request = PlanRequest(
        rule=rule,
        temperature=temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        extrapolate=extrapolate,
    )
    return _point(profile, request, profile.acceptance(rule=rule, temperature=temperature)).max_nodes


def _point(profile: Profile, request: PlanRequest, acceptance: MeasuredAcceptance) -> OperatingPoint:
    return profile.at(request.context_tokens, request.batch_size, acceptance.sampling, extrapolate=request.extrapolate)


def fastest_drafted_tree(profile: Profile) -> TokenTree:
    """Return the fastest tree that has a drafted node, of all that a profile allows."""
    found = requested_plan(profile, PlanRequest())
    drafted = [each for each in (found.tree, *found.budgets) if each.tree.nodes > 1]
    return max(drafted, key=lambda candidate: candidate.speedup.value).tree
