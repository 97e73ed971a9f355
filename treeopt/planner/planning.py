"""Profile to plan: the rule and the tree, chain or plain decoding with the most tokens per second."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from treeopt.arguments import check_instance
from treeopt.arrays import Bool, Float64
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.fastest import fastest_tree, solution_speedups
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import OBJECTIVES
from treeopt.planner.plan_record import Plan
from treeopt.planner.request import PlanRequest, device_memory, limit_nodes
from treeopt.planner.tokens import token_models
from treeopt.planner.unmeasured import unmeasured_warnings
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.solver import Solution, solve
from treeopt.trees import TokenTree, chain
from treeopt.trees.token_tree import MAX_NODES

RIVALS = 100
"""Trees, the fastest of all budgets and depths, that the chosen one is compared with."""


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

    Rules are compared by the best option under each; in a tie the one measured first wins.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included; by default, and at most unless `extrapolate`, that of the
            largest pass that was timed.
        max_depth: most levels below the root; by default, and at most, all that the acceptance was measured for.
        level_widths: most nodes at each depth, as for `treeopt.solve`.
        objective: `speed`, or `tokens` to ignore the costs of a step.
        rule: verification rule; by default the best of all that were measured at the temperature.
        temperature: sampling temperature; by default the first of the rule, or of all.
        context_tokens: tokens in the cache; between measured lengths, times and acceptance are interpolated.
        batch_size: sequences verified together; interpolated likewise.
        raw: take the acceptance as measured, without smoothing.
        extrapolate: continue beyond what was measured.
        lossy: allow rules that change the output's distribution.
        memory_bytes: memory for weights and KV caches; trees that do not fit are not planned.

    Raises InvalidValueError for a budget below 1, an unknown objective or a lossy rule without `lossy`,
    InfeasibleError for operating points beyond what was measured.
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
    """Return the plan for a request; raises as `plan` does."""
    check_profile(profile)
    if request.temperature is None:
        request = replace(request, temperature=profile.acceptance(rule=request.rule).temperature)
    acceptances = select_acceptances(profile, request)
    point = profile.at(
        request.context_tokens, request.batch_size, acceptances[0].sampling, extrapolate=request.extrapolate
    )
    extrapolated = request.max_nodes if request.extrapolate and request.max_nodes is not None else 0
    if extrapolated > MAX_NODES:
        raise InvalidValueError(
            f"max_nodes: expected at most {MAX_NODES} nodes, as many as a tree file holds. Got {extrapolated}: plan for fewer.",
            field="max_nodes",
        )
    memory = None if request.memory_bytes is None else device_memory(profile, request.memory_bytes)
    if memory is not None:
        memory.check(point.context_tokens, point.batch_size)
    # without a draft model plain decoding only: `drafter_choices` plans for the other drafters
    measured = max(point.max_nodes, extrapolated) if profile.has_draft_model else 1
    max_nodes = limit_nodes(measured, request, memory, point)
    tokens = [token_models(profile, acceptance, raw=request.raw).at(point.context_tokens) for acceptance in acceptances]
    models = [model_at(point, rule_tokens, max_nodes=max_nodes if request.extrapolate else 0) for rule_tokens in tokens]
    trees = [RuleTrees.solve(model, max_nodes, request) for model in models]
    plan = plan_rules(trees, models, request.objective)
    return replace(plan, memory=memory, warnings=unmeasured_warnings(request, point, plan.model.acceptance.table))


def check_profile(profile: Profile) -> None:
    """Raise InvalidValueError if `profile` is not a Profile."""
    check_instance("profile", profile, Profile, "read one with treeopt.Profile.load(path)")


def select_acceptances(profile: Profile, request: PlanRequest) -> tuple[MeasuredAcceptance, ...]:
    """Return the acceptances that the request allows, in the order measured, one per rule and temperature.

    Raises InvalidValueError for a lossy rule without `lossy`, InfeasibleError if none is left.
    """
    rule, temperature, lossy = request.rule, request.temperature, request.lossy
    if rule in LOSSY_RULES:
        check_rule(rule, lossy=lossy)
    profile.acceptance(rule=rule, temperature=temperature)  # raises if it was not measured
    first: dict[tuple[str, float], MeasuredAcceptance] = {}
    for acceptance in profile.acceptances_of(rule=rule, temperature=temperature):
        first.setdefault((acceptance.rule, acceptance.temperature), acceptance)
    allowed = tuple(acceptance for acceptance in first.values() if lossy or acceptance.rule not in LOSSY_RULES)
    if not allowed:
        rules = ", ".join(dict.fromkeys(acceptance.rule for acceptance in first.values()))
        at_temperature = "" if temperature is None else f" at temperature {temperature:g}"
        raise InfeasibleError(
            f"rule: only lossy ones were measured{at_temperature}, which change the output's distribution: {rules}. "
            "Profile a lossless one, or allow these with lossy=True, or --lossy on the command line.",
            field="rule",
        )
    return allowed


@dataclass(frozen=True, eq=False, kw_only=True)
class RuleTrees:
    """The trees with the most tokens under one acceptance, solved once and used at any operating point."""

    solution: Solution
    level_widths: int | Sequence[int] | None

    @classmethod
    def solve(cls, model: StepModel, max_nodes: int, request: PlanRequest) -> "RuleTrees":
        """Solve for every budget, and every depth that the request allows and that was measured; raises as `solve` does.

        If one pass drafts all levels, acceptance depends on the parent's rank. Limits of widths need rows that do not.
        """
        table, costs = model.acceptance.table, model.costs
        if costs.per_block and request.level_widths is None:
            table = model.tokens.table_by_parent or table
        limits = [request.max_depth, table.max_depth, costs.max_levels if costs.per_block else None]
        max_depth = min((limit for limit in limits if limit is not None), default=None)
        solution = solve(table, max_nodes, max_depth, level_widths=request.level_widths)
        return cls(solution=solution, level_widths=request.level_widths)

    @property
    def chains(self) -> list[TokenTree]:
        """Plain decoding and all chains within the budget and depth."""
        return [chain(depth) for depth in range(min(self.solution.max_depth, self.solution.max_nodes - 1) + 1)]

    def fastest_by_budget(self, speedups: Float64) -> list[TokenTree]:
        """Return the fastest tree of exactly 2, 4, 8, … and `max_nodes` nodes, if there is one.

        Args:
            speedups: (max_depth + 1, max_nodes + 1), of every tree of the solution.
        """
        speedups, max_nodes = np.where(self._exact, speedups, 0.0), self.solution.max_nodes
        budgets = {2**i for i in range(1, max_nodes.bit_length())} | {max_nodes}
        solved = [nodes for nodes in sorted(budgets) if speedups[:, nodes].any()]
        return [self._tree(nodes, int(speedups[:, nodes].argmax())) for nodes in solved]

    def rivals(self, speedups: Float64) -> list[TokenTree]:
        """Return the fastest trees without duplicates; `speedups` as for `fastest_by_budget`."""
        shallowest = self.solution.tree_depth == np.arange(self.solution.max_depth + 1)[:, None]
        speedups = np.where(self._exact & shallowest, speedups, 0.0)
        fastest = np.argsort(-speedups, axis=None, kind="stable")[:RIVALS]
        return [
            self._tree(int(nodes), int(depth))
            for depth, nodes in zip(*np.unravel_index(fastest, speedups.shape), strict=True)
            if speedups[depth, nodes] > 0
        ]

    def _tree(self, nodes: int, depth: int) -> TokenTree:
        """Return a tree of the solution; cached, because operating points share most of their rivals."""
        if (nodes, depth) not in self._trees:
            self._trees[nodes, depth] = self.solution.tree(nodes, depth)
        return self._trees[nodes, depth]

    @property
    def _exact(self) -> Bool:
        """Whether each tree has as many nodes as its budget."""
        return np.asarray(self.solution.tree_nodes == np.arange(self.solution.max_nodes + 1))

    @cached_property
    def _trees(self) -> dict[tuple[int, int], TokenTree]:
        return {}


def plan_rules(trees: Sequence[RuleTrees], models: Sequence[StepModel], objective: str = "speed") -> Plan:
    """Return the plan of the best rule at an operating point, with the best option of each rule.

    Args:
        trees: the trees of each rule.
        models: the model under each rule, at one operating point.
        objective: as for `plan`.
    """
    plans = [plan_rule(*rule, objective) for rule in zip(trees, models, strict=True)]
    best = max(plans, key=lambda plan: OBJECTIVES[objective](plan.choice))
    return replace(best, rules=tuple(plan.choice for plan in plans))


def plan_rule(trees: RuleTrees, model: StepModel, objective: str) -> Plan:
    """Return the plan under one acceptance, at the model's operating point."""
    solution, speedups = trees.solution, solution_speedups(trees.solution, model.costs)
    fastest = fastest_tree(solution, model.costs, level_widths=trees.level_widths, speedups=speedups)
    one_draft = [chain(1)] if min(solution.max_nodes - 1, solution.max_depth) else []  # even if no draft was accepted
    rivals = _by_speedup(model, list(dict.fromkeys([fastest.tree, *trees.rivals(speedups), *one_draft])))
    if objective == "speed":
        best, best_chain = rivals[0], _by_speedup(model, trees.chains)[0]
    else:
        best = solution.tree(solution.max_nodes, solution.max_depth)
        best_chain = max(trees.chains, key=model.tokens_per_step)
    plain, single, tree, *budgets = model.predict_all([chain(0), best_chain, best, *trees.fastest_by_budget(speedups)])
    return Plan(
        plain=plain,
        chain=single,
        tree=tree,
        budgets=tuple(budgets),
        objective=objective,
        fastest=fastest,
        rivals=tuple(rivals),
        model=model,
        solution=solution,
    )


def fastest_tree_and_chain(trees: RuleTrees, model: StepModel) -> tuple[TokenTree, TokenTree]:
    """Return the fastest tree and the fastest chain under one acceptance, as `plan_rule` plans them."""
    speedups = solution_speedups(trees.solution, model.costs)
    fastest = fastest_tree(trees.solution, model.costs, level_widths=trees.level_widths, speedups=speedups)
    return _by_speedup(model, [fastest.tree, *trees.rivals(speedups)])[0], _by_speedup(model, trees.chains)[0]


def _by_speedup(model: StepModel, trees: Sequence[TokenTree]) -> list[TokenTree]:
    """Return trees by predicted speedup, the fastest first; the sort is stable.

    The order may differ from the acceptance table's, because predictions are corrected by replay.
    """
    return [trees[index] for index in np.argsort(-model.speedups(trees), kind="stable")]


def fastest_drafted_tree(profile: Profile) -> TokenTree:
    """Return the fastest tree with a draft token, at the first operating point of a profile."""
    plan = requested_plan(profile, PlanRequest())
    drafted = [option for option in (plan.tree, *plan.budgets) if option.tree.nodes > 1]
    return max(drafted, key=OBJECTIVES["speed"]).tree
